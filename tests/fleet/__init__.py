"""The worker's own logic in virtual time: real workers, ingest and SQL, in the test's process."""
