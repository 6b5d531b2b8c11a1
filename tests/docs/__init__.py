"""Every fenced block of the documentation is run, or checked as far as it can be."""
