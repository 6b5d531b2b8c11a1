"""What a worker does besides running handlers: one file a duty."""
