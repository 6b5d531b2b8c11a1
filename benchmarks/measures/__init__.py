"""Measure one target per module; each has ``measure`` and the page that it writes."""
