"""Surelane's queue on the connections that a program has: psycopg, SQLAlchemy, Django."""
