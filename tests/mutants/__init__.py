"""Single faults in the sources, and which tests find them: ``python -m tests.mutants``."""
