"""Run the peers: other job queues on PostgreSQL, each in its fastest documented settings."""
