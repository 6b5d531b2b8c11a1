"""Bring a PostgreSQL database up to the schema of this release: once, and never halfway.

Read ``files`` for the rules that scripts obey, ``runner`` for how they are applied, ``command`` for what an
operator types. The scripts themselves are in ``incremental/`` and ``idempotent/``.
"""
