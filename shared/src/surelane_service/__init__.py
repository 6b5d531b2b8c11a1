"""What the services share: settings, lifecycle, logs, the connection pool, probes and telemetry."""
