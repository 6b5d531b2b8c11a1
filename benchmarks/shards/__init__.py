"""Simulate thousands of workspaces on shards, and run the services on a part of them (``python -m``)."""
