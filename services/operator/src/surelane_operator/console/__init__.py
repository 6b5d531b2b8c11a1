"""The operator's page, on the private port under ``/console/``: off unless ``SURELANE_CONSOLE_SIGN_IN`` is set."""
