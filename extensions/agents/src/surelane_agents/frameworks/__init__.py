"""Agents of other frameworks, run durably: what their models answer and their tools return is stored in steps.

Each module has one function, ``durable``. A later attempt gets the stored responses and results.
"""
