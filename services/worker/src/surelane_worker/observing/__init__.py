"""Observe the worker: metrics, spans, readiness and outages."""
