"""Simulate fleets: the real ingest and workers, and the real SQL, in virtual time, with faults from a seed.

One event loop runs everything, and its clock stands while a statement runs. Then it jumps to the next thing to do. So
minutes pass in a second, and a seed repeats the same run. See :mod:`tests.simulation.fleet` for what is promised.
"""
