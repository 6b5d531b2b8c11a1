"""``surelane``: what an operator asks and does, from a terminal or a script."""
