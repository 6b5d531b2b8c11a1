"""Measure one target per module: each has the coroutine ``measure``, which returns figures and verdicts."""
