"""The releases before this version, by the commits that hold their source."""

COMMITS = {"0.1.0": "207f9060208c8eba3fc4d9c2252606efff87bd3b"}
"""Version to commit, oldest first. Add a release's commit together with the next version."""
