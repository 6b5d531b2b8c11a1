"""Evals by the command: an agent answers cases against a model's server, and its tools are not called."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import yaml

from extensions.agents.tests.system.model_server import ModelServer, calls, model_server, says, settings
from tests.processes import clean_environment

BOT = '''
from surelane_agents import Agent, Tools

tools = Tools()

@tools.add
def on_call(service: str) -> str:
    """Say who is on call."""
    raise SystemExit("called for real")

@tools.add(approval=True)
def restart(service: str) -> str:
    """Restart a service."""
    raise SystemExit("called for real")

def guard(what: str, text: str) -> str | None:
    return "I do not say this." if "secret" in text else None

agent = Agent(instructions="You help.", tools=tools, guard=guard)
'''
TOOLS = {"on_call": {"name": "Ada"}}
RIGHT = [
    {"Contains": "Ada"},
    {"ToolCorrectness": {"expected_tools": ["on_call"]}},
    {"ArgumentCorrectness": {"tool_name": "on_call", "expected_arguments": {"service": "api"}}},
]
CASES = [
    {"name": "right", "inputs": {"text": "plan:right", "tools": TOOLS}, "evaluators": RIGHT},
    {"name": "idle", "inputs": {"text": "plan:idle", "tools": TOOLS}, "evaluators": RIGHT},
    {"name": "stray", "inputs": {"text": "plan:stray"}, "evaluators": RIGHT},
    {"name": "judged", "inputs": {"text": "plan:judged"}, "evaluators": [{"LLMJudge": "It is kind."}]},
    {"name": "guarded", "inputs": {"text": "a secret"}, "evaluators": [{"Equals": "I do not say this."}]},
]
PLANS: dict[str, Any] = {
    "right": [calls(("on_call", {"service": "api"})), says("It is Ada.")],
    "idle": [says("I do not know.")],
    "stray": [calls(("restart", {"service": "api"}))],
    "judged": [says("Go away. plan:judge")],
    "judge": [calls(("final_result", {"reason": "It is rude.", "pass": False, "score": 0}))],
}
RATED: dict[str, Any] = {"reason": None, "question": "plan:right", "answer": "It is Ada.", "rating": "good"}


async def evals(directory: Path, model: ModelServer, *arguments: str) -> tuple[int | None, str]:
    """Run the command in a project. Return how it ended, and what it printed."""
    environment = clean_environment() | settings(model) | {"COLUMNS": "300"}
    command = [sys.executable, "-m", "surelane_operator.cli", "evals", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=environment, stdout=PIPE, stderr=PIPE
    )
    said, wrong = await process.communicate()
    return process.returncode, said.decode() + wrong.decode()


async def test_cases_assert_calls_and_answers_and_decide_how_the_command_ends(tmp_path: Path) -> None:
    """The tools are stubbed, a model judges, and a report is shown beside that of an earlier version."""
    (tmp_path / "bot.py").write_text(BOT)
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump({"name": "bot", "cases": CASES}))
    async with model_server() as model:
        model.plans |= PLANS
        run = "run", "bot:agent"
        code, said = await evals(tmp_path, model, *run, "--save", "first.json")
        assert (code, said.count("on_call")) >= (1, 1), said
        assert "2 of 5 answers pass" in said
        assert "missing tools: 'on_call'" in said
        assert (
            "stray: LookupError: the model called restart with {'service': 'api'}: add what it returns to the case"
            in said
        )
        assert "It is rude." in said
        assert {plan: len(asked) for plan, asked in model.asked.items()} == {
            "right": 2,
            "idle": 1,
            "stray": 1,
            "judged": 1,
            "judge": 1,
        }
        (told,) = [each for each in model.asked["right"][1]["messages"] if each["role"] == "tool"]
        assert json.loads(told["content"]) == TOOLS["on_call"]
        model.plans["idle"] = PLANS["right"]
        code, said = await evals(tmp_path, model, *run, "--beside", "first.json", "--least", "0.6")
        assert code == 0, said
        assert "3 of 5 answers pass" in said
        assert "I do not know. → It is Ada." in " ".join(said.split())


async def test_rated_turns_become_cases_that_a_model_judges(tmp_path: Path) -> None:
    bad = RATED | {"event": 2, "question": "plan:bad", "rating": "bad", "reason": "Wrong."}
    lines = [RATED | {"event": 1}, bad, bad | {"rating": "good"}, RATED | {"event": 3, "question": None}]
    (tmp_path / "bot.py").write_text(BOT)
    (tmp_path / "rated.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    async with model_server() as model:
        code, said = await evals(tmp_path, model, "collect", "rated.jsonl", "rated.yaml")
        assert (code, said) == (0, "2 cases are in rated.yaml\n")
        cases = yaml.safe_load((tmp_path / "rated.yaml").read_text())
        for case in cases["cases"]:
            case["inputs"]["tools"] = TOOLS
        (tmp_path / "rated.yaml").write_text(yaml.safe_dump(cases))
        judged = calls(("final_result", {"reason": "So it is.", "pass": True, "score": 1}))
        for plan in ("right", "bad"):
            model.plans[plan] = [[PLANS["right"][0], judged], PLANS["right"][1]]
        code, said = await evals(tmp_path, model, "run", "bot:agent", "rated.yaml")
        assert (code, "2 of 2 answers pass" in said) == (0, True), said
        assert "Wrong." in str(model.asked["bad"][-1]), "the judge is told why it was bad"


async def test_what_cannot_be_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    (tmp_path / "evals.yaml").write_text("name: x\ncases: [{inputs: {text: a, tool: b}}]")
    async with model_server() as model:
        for arguments, why in {
            ("bot:tools",): "bot:tools is a Tools, not a surelane_agents.Agent",
            ("nobot:agent",): "nobot:agent cannot be imported: ModuleNotFoundError",
            ("bot:agent",): "the cases: evals.yaml: ",
            ("bot:agent", "none.yaml"): "the cases: none.yaml: ",
            ("bot:agent", "--beside", "bot.py"): "the report: bot.py: ",
        }.items():
            code, said = await evals(tmp_path, model, "run", *arguments)
            assert (code, why in said) == (2, True), said
