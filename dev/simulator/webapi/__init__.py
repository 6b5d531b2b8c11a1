"""Slack's Web API: reading a call (``call``), doing it (one module a family), answering it (``dispatch``)."""
