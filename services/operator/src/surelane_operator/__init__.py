"""The operator's service and command: reads, changes, the page, the HTTP API, assistants' tools and the doctor."""
