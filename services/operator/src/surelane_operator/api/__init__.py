"""The operator's HTTP API: private port only, off unless ``SURELANE_API_TOKEN`` is set."""
