"""``/control/...``: what people do in Slack, and faults on demand; for the page, the command and tests."""
