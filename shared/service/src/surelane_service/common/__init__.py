"""What services and migrations both have. The migrations' package imports nothing of ours: it has a symbolic link."""
