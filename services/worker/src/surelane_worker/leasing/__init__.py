"""Leasing: the claims this worker holds, and the heartbeats that renew them."""
