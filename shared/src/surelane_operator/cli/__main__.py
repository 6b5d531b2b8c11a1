"""Run the ``surelane`` command, also as ``python -m surelane_operator.cli``."""

import sys


def main() -> None:
    """Run the command, or say which extra installs it: the client is also installed without it."""
    try:
        from surelane_operator.cli.command import app  # noqa: PLC0415 - the import that may fail
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed. Install the command with: pip install 'surelane[operator]'")
    app()


if __name__ == "__main__":
    main()
