"""What a team writes against: handlers, their context and their outcomes."""
