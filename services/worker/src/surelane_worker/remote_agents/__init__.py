"""Remote agents: signed calls to programs outside the queue, and their settings."""
