"""The operator's tools: operations, the timeline of an event, the doctor, the command and the HTTP API."""
