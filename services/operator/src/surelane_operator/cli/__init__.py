"""``surelane``: the operator's command, for terminals and scripts."""
