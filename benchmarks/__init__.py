"""Measure the queue beside its peers in one run, with one small module per target.

``make bench`` runs all of them and writes ``docs/performance/``; ``python -m benchmarks --help`` lists the options.
A benchmark is a module of ``benchmarks/measures/`` with ``async def measure(bench: Bench) -> Result``.
``benchmarks/__main__.py`` lists them.
"""
