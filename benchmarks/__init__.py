"""Benchmarks: one small module per target of the queue, side by side with peers in one run.

``make bench`` runs them all and writes ``docs/performance/``; ``python -m benchmarks --help`` lists the options.
A benchmark is a module with ``async def measure(bench: Bench) -> Result``, listed in ``benchmarks/__main__.py``.
"""
