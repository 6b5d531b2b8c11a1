"""List the releases before this version, by the commits of their source."""

COMMITS = {"0.1.0": "207f9060208c8eba3fc4d9c2252606efff87bd3b"}
"""Maps versions to commits, oldest first. Add a release's commit together with the next version."""
