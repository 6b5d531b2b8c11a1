"""Databases as others have them: each promise of the queue, on each profile. Run: make neighbours."""
