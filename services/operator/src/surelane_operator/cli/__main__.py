"""Run the ``surelane`` command: ``surelane``, or ``python -m surelane_operator.cli``."""

import sys
from importlib.metadata import entry_points

import typer


def main() -> None:
    """Run another package's command by itself. The imports of the operator's would take a second before it."""
    for found in entry_points(group="surelane.commands", name=(sys.argv[1:] or ["--"])[0]):
        command = found.load()
        if not isinstance(command, typer.Typer) and not found.name.startswith("-"):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command()(command)
            alone(sys.argv[2:], prog_name=f"surelane {found.name}")
    from surelane_operator.cli.command import app  # noqa: PLC0415 - see above

    app()


if __name__ == "__main__":
    main()
