"""Write results as Markdown and SVG, with the machine, versions and settings."""

import os
import platform
import shutil
import subprocess
import textwrap
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import plots
from benchmarks.result import Result, Table, Verdict
from benchmarks.server import Server, connected

PACKAGES = ("surelane", "asyncpg", "uvloop", "pgqueuer", "procrastinate", "psycopg", "awa-pg")
SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


async def circumstances(server: Server) -> str:
    """Describe the machine, versions and settings in a Markdown paragraph."""
    async with connected(server.admin) as connection:
        postgres = await connection.fetchval("show server_version")
        settings = [f"{name}={await connection.fetchval(f'show {name}')}" for name in SHOWN]
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return paragraph(f"""
        Measured {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores ({_processor()}),
        {platform.system()} {platform.release()}, with Python {platform.python_version()}{_node()}
        and PostgreSQL {postgres} ({", ".join(settings)}) on the same machine; {versions}.
    """)


def _node() -> str:
    """Return Node's version, for the peer that needs it."""
    node = shutil.which("node")
    if not node:
        return ""
    shown = subprocess.run((node, "--version"), capture_output=True, text=True, check=False)
    return f", Node {shown.stdout.strip().removeprefix('v')}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def paragraph(text: str) -> str:
    """Join a text's lines and wrap it anew."""
    return wrapped(" ".join(text.split()))


def wrapped(text: str, indent: str = "") -> str:
    """Wrap a text at 100 columns; ``indent`` begins each line but the first."""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table_text(table: Table) -> str:
    """Format a Markdown table."""
    rules = ["---"] + ["---:"] * (len(table.columns) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (table.columns, rules, *table.rows))


def verdict_text(verdict: Verdict) -> str:
    """Format a target and whether it is met."""
    return f"{'met' if verdict.met else '**missed**'}: {verdict.target}: {verdict.measured}"


def write(directory: Path, name: str, result: Result, where: str) -> None:
    """Write ``name.md`` and its plots."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    for number, plot in enumerate(result.plots):
        picture = f"{name}.svg" if number == 0 else f"{name}-{number + 1}.svg"
        plots.draw(plot, directory / picture)
        pictures.append(f"![{plot.title}]({picture})")
    verdicts = "\n".join(wrapped(f"- {verdict_text(verdict)}", indent="  ") for verdict in result.verdicts)
    parts = (f"# {result.title}", paragraph(result.how), table_text(result.table), verdicts, *pictures, where)
    (directory / f"{name}.md").write_text("\n\n".join(part for part in parts if part) + "\n")


def summary(results: dict[str, Result]) -> str:
    """Format all targets as one Markdown table."""
    rows = [
        (f"[{result.title}]({name}.md)", verdict.target, verdict.measured, "yes" if verdict.met else "**no**")
        for name, result in results.items()
        for verdict in result.verdicts
    ]
    return table_text(Table(("benchmark", "target", "measured", "met"), rows))
