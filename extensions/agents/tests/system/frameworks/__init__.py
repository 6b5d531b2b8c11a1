"""Agents of other frameworks: each of their features, with a worker that is killed after each step."""
