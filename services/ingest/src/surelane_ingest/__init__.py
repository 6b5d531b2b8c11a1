"""Ingest: verifies what Slack posts, stores it, and answers 200 after the commit.

Read ``app`` for the answers, ``envelope`` for what is taken, ``writer`` for how it is stored.
"""
