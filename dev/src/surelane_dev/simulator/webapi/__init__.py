"""Serve Slack's Web API: ``call`` reads a call, one module per family does it, ``dispatch`` answers it."""
