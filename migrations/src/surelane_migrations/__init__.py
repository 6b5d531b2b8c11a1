"""Bring a PostgreSQL database up to the schema of this release, in one transaction.

``files`` has the rules for scripts, ``runner`` applies them, and ``command`` is the command line. The scripts
themselves are in ``incremental/`` and ``idempotent/``.
"""
