"""The benchmarks: each target of the queue as one small module, side by side with peers in one run.

``make bench`` runs them all and writes ``docs/performance/``; ``python -m benchmarks --help`` says what else it can do.
A benchmark is a module with ``async def measure(bench: Bench) -> Result``, listed in ``benchmarks/__main__.py``.
"""
