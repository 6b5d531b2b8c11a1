"""Run beside the measured server as processes of their own: load, receivers, handlers, and their reports."""
