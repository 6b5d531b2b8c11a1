"""Observing: metrics, spans, readiness and outages of the worker."""
