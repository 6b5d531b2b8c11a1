"""The duties of a worker besides running handlers: announce, rescue, sweep, and fire schedules."""
