"""Call remote agents: signed requests to programs outside the queue, and their settings."""
