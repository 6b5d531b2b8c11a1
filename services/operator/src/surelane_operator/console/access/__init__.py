"""Who may use the operator's page and ``/v1``: sign-in, sessions, roles, and the guard in front of both."""
