"""The peers: other job queues on PostgreSQL, each in its own fastest documented setting."""
