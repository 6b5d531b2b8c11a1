"""Run Surelane in the public harness for PostgreSQL job queues."""
