"""What people see of a turn: text, tables, steps."""
