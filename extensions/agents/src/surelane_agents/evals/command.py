"""``surelane evals``: try an agent on cases, as a gate for CI."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from surelane.errors import SettingsError
from surelane_agents.agent import Agent
from surelane_agents.tools.functions import load
from surelane_operator.cli.session import ExitCode, failed, interruptible

app = typer.Typer(help="Try an agent on cases: what it says, and which tools it calls.", no_args_is_help=True)


@app.callback()
def _installed() -> None:
    if importlib.util.find_spec("pydantic_evals") is None:
        raise failed(
            "evals need a package: pip install --find-links DIRECTORY 'surelane-agents[evals]'",
            ExitCode.USAGE,
        )


@app.command("run")
def run_cases(
    agent: Annotated[str, typer.Argument(help="module:attribute of an Agent, such as mybot.handlers:agent.")],
    file: Annotated[Path, typer.Argument(help="The cases, in YAML.")] = Path("evals.yaml"),
    judge: Annotated[str | None, typer.Option(help="The model that judges; by default the agent's.")] = None,
    times: Annotated[int, typer.Option(min=1, help="How often each case is asked.")] = 1,
    least: Annotated[float, typer.Option(min=0, max=1, help="The share of answers that must pass.")] = 1.0,
    save: Annotated[Path | None, typer.Option(help="Write the report here, as JSON.")] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Show the report beside this one of another version.")
    ] = None,
) -> None:
    """Ask the model each case, with the case's results in place of the tools'. Exit with 1 if too few answers pass."""
    from pydantic_evals.reporting import EvaluationReportAdapter  # noqa: PLC0415 - it imports the libraries of models

    from surelane_agents.evals.runs import cases_of, evaluate, passed, report_of  # noqa: PLC0415 - likewise

    try:
        sys.path.insert(0, str(Path.cwd()))
        found, baseline = load(agent, Agent, "AGENT"), report_of(beside) if beside else None
        with interruptible():
            report = asyncio.run(evaluate(found, cases_of(file), judge=judge, times=times))
    except SettingsError as error:
        raise failed(str(error), ExitCode.USAGE) from None
    Console(soft_wrap=False).print(report.console_table(baseline, include_output=True, include_reasons=True))
    for failure in report.failures:
        typer.echo(f"{failure.name}: {failure.error_message}", err=True)
    if save:
        save.write_bytes(EvaluationReportAdapter.dump_json(report, indent=1))
    held = passed(report)
    typer.echo(f"{sum(held)} of {len(held)} answers pass")
    if not held or sum(held) < least * len(held):
        raise typer.Exit(ExitCode.FAILED)


@app.command("collect")
def collect(
    ratings: Annotated[Path, typer.Argument(help="What `surelane feedback export` printed.")],
    file: Annotated[Path, typer.Argument(help="The file of cases to write, in YAML.")],
) -> None:
    """Make a case of each rated turn, which a model judges. Add what the tools returned, and assertions."""
    from surelane_agents.evals.runs import rated  # noqa: PLC0415 - it imports the libraries of models

    cases = rated(ratings.read_text(encoding="utf-8").splitlines())
    cases.to_file(file, schema_path=None)
    typer.echo(f"{len(cases.cases)} cases are in {file}")
