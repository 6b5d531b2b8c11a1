"""The parts that a team writes its handlers against: registry, handler, context and outcomes."""
