"""What an operator may look at. The page, ``/v1``, the command and assistants' tools show the same reads."""
