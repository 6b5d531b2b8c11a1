"""The parts that services share: settings, lifecycle, logs, pool, probes, telemetry, and their clients of the queue."""
