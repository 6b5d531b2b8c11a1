"""Ingest: verifies what Slack and other programs post, stores it, and answers 200 after the commit.

``app`` has the steps that every request takes. ``slack`` and ``webhooks`` are its endpoints, ``envelope`` reads
Slack's payloads, and ``writer`` stores events.
"""
