"""List the releases before this version, by the commits of their source."""

COMMITS = {"0.2.0": "12ba04d12251c075fca6870bf650a65f224bd7ff"}
"""Maps versions to commits, oldest first. Add a release's commit together with the next version."""
