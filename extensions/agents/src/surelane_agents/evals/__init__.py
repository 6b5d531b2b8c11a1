"""Evals: cases that an agent answers, with what must come of them, on pydantic-evals."""
