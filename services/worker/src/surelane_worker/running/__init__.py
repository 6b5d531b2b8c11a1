"""Running: slots, and one run of a handler per attempt."""
