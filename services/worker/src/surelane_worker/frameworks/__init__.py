"""Agents of other frameworks, run durably: what their models answer and their tools return is stored in steps.

Each module has one function, ``durable``, and imports its framework. An attempt runs the agent from its beginning, and
gets stored responses and results until it is where the last attempt was.
"""
