"""What the agents of this folder may do: file a ticket, in a file that stands for your ticket system."""

import os
from pathlib import Path

INSTRUCTIONS = "You help the people who run our services. File a ticket for each problem."
FILE = Path(os.environ.get("TICKETS", "tickets.txt"))


def file_ticket(title: str) -> str:
    """File a ticket, and return its number."""
    with FILE.open("a") as file:
        file.write(f"{title}\n")
    return f"T{len(FILE.read_text().splitlines())}"
