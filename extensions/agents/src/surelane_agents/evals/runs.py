"""Cases that an agent answers, with its own model, instructions and guard. Its tools are not called.

A YAML file has the cases, or they are made of people's ratings.
"""

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pydantic_ai as ai
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel, TypeAdapter
from pydantic_ai.capabilities import Instrumentation
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import LLMJudge
from pydantic_evals.evaluators.llm_as_a_judge import set_default_judge_model
from pydantic_evals.reporting import EvaluationReport, EvaluationReportAdapter

from surelane_agents.agent import Agent
from surelane_agents.agent_settings import agent_settings
from surelane_agents.errors import told_of
from surelane_agents.models.client import model_of, request_settings
from surelane_agents.run import conversation
from surelane_agents.tools.servers import servers
from surelane_agents.tools.skills import skills

JSON: TypeAdapter[Any] = TypeAdapter(Any)
AT_ONCE = 4
"""Cases that are asked at once."""
ALIKE = "The output says in substance what the expected output says, which a person called good."
UNLIKE = "A person called this answer bad: {}. The output does not have its fault."


class Earlier(BaseModel, extra="forbid"):
    """An earlier message of a thread: a person's, or the agent's ``own``."""

    text: str
    own: bool = False


class Asked(BaseModel, extra="forbid"):
    """What an agent is asked in one case: a message, with those before it in its thread.

    ``tools``: what its tools return, by their names. A tool without this is not called: the case fails.
    """

    text: str
    thread: list[Earlier] = []
    tools: dict[str, Any] = {}


Cases = Dataset[Asked, Any, Any]
Report = EvaluationReport[Asked, Any, Any]


def cases_of(path: Path) -> Cases:
    """Read the cases of a YAML or JSON file, or raise :class:`SettingsError`."""
    with told_of("the cases", path):
        return Cases.from_file(path)


def report_of(path: Path) -> Report:
    """Read the report of an earlier run, or raise :class:`SettingsError`."""
    with told_of("the report", path):
        return EvaluationReportAdapter.validate_json(path.read_bytes())


def rated(lines: Iterable[str]) -> Cases:
    """Return a case for each rated turn of ``surelane feedback export``: the good is to stay, the bad is not."""
    found: dict[str, Case[Asked, Any, Any]] = {}
    for each in map(json.loads, filter(str.strip, lines)):
        name, asked, answer = f"event {each['event']}", each["question"], each["answer"]
        if not asked or not answer or name in found:
            continue
        good = each["rating"] == "good"
        told = json.dumps({"answer": answer, "reason": each["reason"]}, ensure_ascii=False)
        rubric = ALIKE if good else UNLIKE.format(told)
        found[name] = Case(
            name=name,
            inputs=Asked(text=asked),
            expected_output=answer if good else None,
            evaluators=[LLMJudge(rubric, include_input=True, include_expected_output=good)],
        )
    return Cases(name="rated turns", cases=list(found.values()))


@dataclass
class Stubs(ai.WrapperToolset[Any]):
    """Tools as the model sees them. A call returns what the case has for it."""

    returned: Mapping[str, Any]

    async def call_tool(self, name: str, tool_args: dict[str, Any], *_: Any, **__: Any) -> Any:
        if name not in self.returned:
            missing = "add what it returns to the case's tools"
            raise LookupError(f"the model called {name} with {tool_args}: {missing}")
        return self.returned[name]


async def evaluate(agent: Agent, cases: Cases, *, judge: str | None = None, times: int = 1) -> Report:
    """Let an agent answer each case so many ``times``, check the answers, and return the report.

    Its model is asked for real. ``judge``: the model of ``LLMJudge``, by its name; by default the agent's own.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(TracerProvider())  # the calls of tools are found in spans, which stay here
    settings = agent_settings()
    model_of(settings, agent.model)
    set_default_judge_model(model_of(settings, judge or agent.model))
    about = {"model": agent.model or settings.model}
    given: Any = {"max_concurrency": AT_ONCE, "repeat": times, "metadata": about}
    return await cases.evaluate(partial(answered, agent), name="agent", progress=False, **given)


async def answered(agent: Agent, asked: Asked) -> Any:
    """Return what an agent answers, or what its guard says in its place."""
    if refusal := await _refusal(agent, "question", asked.text):
        return refusal
    settings = agent_settings()
    own = [ai.Tool(each.function, **each.about()) for each in agent.all_tools()]
    foreign = {name: each for name, each in servers(agent.mcp_file()).items() if each.account is None}
    toolsets = [ai.FunctionToolset(own), *(each.toolset(name) for name, each in foreign.items())]
    loop: ai.Agent[None, Any] = ai.Agent(
        model_of(settings, agent.model),
        instructions=agent.instructions or settings.model_instructions,
        model_settings=request_settings(settings),
        output_type=agent.output or str,
        retries=3,
        toolsets=[Stubs(each, asked.tools) for each in toolsets],
        capabilities=[Instrumentation(), *skills(agent.skills_folder())],
    )
    async with loop:
        limits = ai.UsageLimits(request_limit=settings.model_requests)
        history = conversation([{"own": each.own, "text": each.text} for each in asked.thread])
        output = (await loop.run(asked.text, message_history=history, usage_limits=limits)).output
    return await _refusal(agent, "answer", str(output)) or JSON.dump_python(output, mode="json")


async def _refusal(agent: Agent, what: Any, text: str) -> str | None:
    refusal = None if agent.guard is None else agent.guard(what, text)
    return await refusal if inspect.isawaitable(refusal) else refusal


def passed(report: Report) -> list[bool]:
    """Return for each answer whether all that was asserted of it holds. What could not be checked does not."""
    held = [
        not case.evaluator_failures and all(each.value for each in case.assertions.values())
        for case in report.cases
    ]
    return held + [False] * len(report.failures)
