"""Run as processes of their own in a benchmark: load, a collector, handlers, and their reports."""
