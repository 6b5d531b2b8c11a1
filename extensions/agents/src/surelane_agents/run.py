"""Run one turn with pydantic-ai: each response of the model and each call of a tool is a step.

pydantic-ai runs the whole turn again in each attempt. The wrappers here return what is stored, so the conversation is
rebuilt without a call.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, Self

import pydantic_ai as ai
from pydantic_ai.capabilities import HandleDeferredToolCalls, ProcessHistory
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_core import to_jsonable_python

from surelane.events import Event
from surelane_agents.agent import Agent
from surelane_agents.agent_settings import agent_settings
from surelane_agents.calls import NAME, AgentCalls, Spent, patiently, stored
from surelane_agents.context.files import Attached
from surelane_agents.context.thread import ThreadMessage
from surelane_agents.errors import ModelRefusedError, StoppedError, UnavailableError
from surelane_agents.models.budget import budget_of
from surelane_agents.models.client import LONGEST_REASON, model_of, request_settings, understood
from surelane_agents.models.compaction import ask_quietly, compacted_thread, compacted_turn
from surelane_agents.models.endings import Length, check_end, response_of, stored_form, with_own_ids
from surelane_agents.models.metrics import count
from surelane_agents.models.tracing import traced, within_tool
from surelane_agents.people.access import Access
from surelane_agents.people.approvals import Approvals
from surelane_agents.people.feedback import below
from surelane_agents.people.steering import Steered
from surelane_agents.reply.shown import safe_name
from surelane_agents.reply.transcript import transcript
from surelane_agents.reply.voice import Speech, Voice
from surelane_agents.tools.accounts import PersonsAccounts
from surelane_agents.tools.functions import ASKER
from surelane_agents.tools.results import LONGEST_RESULT, result_shortened, with_files
from surelane_agents.tools.servers import McpServer, servers
from surelane_agents.tools.skills import skills
from surelane_service.lifecycle import outside
from surelane_worker.handling.asks import People
from surelane_worker.handling.children import ChildError
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import duration
from surelane_worker.slack.client import ThreadGoneError
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.notes import ClaimLostError
from surelane_worker.slack.replies import SCOPE
from surelane_worker.slack.tokens import owner_fields

AT_ONCE = 0.1
"""Seconds after which an attempt begins again whose account was refused on the way. Then the person is asked."""
Call = Callable[[Any], Awaitable[Any]]
CALLS_PER_REQUEST = 10
"""Calls of tools per request to the model, on average over a turn."""
USAGE = {"requests": 0, "input_tokens": 0, "output_tokens": 0, "tool_calls": 0}
MISSING = "\nThe person has not connected an account, so these tools are missing: {}. Say so if it matters."


@dataclass(eq=False)
class AgentTurn:
    """One attempt's run of a turn of an agent."""

    agent: Agent
    ctx: Context
    event: Event
    voice: Voice
    files: Attached
    access: Access
    joining: Steered
    answered: str | None = None
    """The name of the model of the last response."""
    cost: Decimal = Decimal(0)
    priced: bool = False
    """Whether a response had a price."""
    accounts: PersonsAccounts | None = None
    usage: dict[str, int] = field(default_factory=USAGE.copy)
    places: dict[str, str] = field(default_factory=dict)
    """The number of the response that asked for a call, and the call's number in it, by the call's id."""

    def __post_init__(self) -> None:
        self._speech: Speech | None = None
        """What says the response that the model gives in this attempt."""
        self._speaking = AsyncExitStack()
        self.settings = agent_settings()
        self.tools = self.agent.all_tools()
        self.budget = budget_of(self.settings.model_budget)
        self.approvals = Approvals(
            self.event, self.ctx, self.voice, self.access, self.agent.patience, self.files.last
        )
        asker: People = self.voice.place.user or []
        for tool in self.tools:
            self.approvals.may(tool.name, asker if tool.by == ASKER else tool.by, tool.allow)
        self._below = self.agent.below, self.event, self.ctx

    def report(self, answer: Any, **more: str) -> dict[str, Any]:
        """Return the turn's result for history."""
        cost = {"cost": float(self.cost)} if self.priced else {}
        standing = {"approved": sorted(self.approvals.standing)} if self.approvals.standing else {}
        return {"answer": answer, "model": self.answered, "usage": self.usage, **cost, **standing, **more}

    async def answer(self, asked: str, said: Sequence[ThreadMessage]) -> Any:
        """Let the model answer, and return its last text, or its output as JSON.

        Raises:
            ModelError: the turn cannot go on.
        """
        await self._check("question", asked)
        said = await compacted_thread(self, said)
        agent, settings = self.agent, self.settings
        if any(each.approval for each in (*self.tools, *servers(agent.mcp_file()).values())):
            await self.approvals.recall()

        async def now(messages: list[ai.ModelMessage]) -> list[ai.ModelMessage]:
            return await compacted_turn(self, asked, await self._steered(messages))

        own = [
            ai.Tool(each.function, requires_approval=each.approval, **each.about())
            for each in self.tools
            if self.access.has(each.name, each.allow)
        ]
        folder = agent.skills_folder()
        permitted = folder is not None and self.access.has("skills", None)
        loaded = skills(folder, lambda tools: StoredCalls(tools, self)) if permitted else []
        make = partial(
            ai.Agent,
            StoredResponses(model_of(settings, agent.model), self),
            model_settings=request_settings(settings),
            deps_type=Context,
            output_type=agent.output or str,
            retries=3,
            capabilities=[HandleDeferredToolCalls(self.approvals.ask), ProcessHistory(now), *loaded],
        )
        async with AsyncExitStack() as stack:
            loop = await self._connected(stack, make, StoredCalls(ai.FunctionToolset(own), self))
            await stack.enter_async_context(self.voice.working())
            try:
                output = (await loop.run(asked, message_history=conversation(said), deps=self.ctx)).output
            except ai.UnexpectedModelBehavior as error:
                # The responses are stored, so each attempt would come to the same end.
                why = f"the model's responses cannot be used: {error.message}"
                raise ModelRefusedError(why[:LONGEST_REASON]) from None
        if isinstance(output, str):
            return output
        answer = to_jsonable_python(output)
        await self._check("answer", json.dumps(answer, ensure_ascii=False))
        return answer

    async def _steered(self, messages: list[ai.ModelMessage]) -> list[ai.ModelMessage]:
        """Return the messages for the next request to the model, with what people have said meanwhile."""
        self._check_limits()  # what joins gets its request
        joined, last = await self.joining.at(self.usage["requests"] + 1), messages[-1]
        for text in joined:
            await self._check("question", text)
        if not joined:
            return messages
        assert isinstance(last, ai.ModelRequest)  # noqa: S101 - the question, or the results of calls
        return [*messages[:-1], replace(last, parts=[*last.parts, *map(ai.UserPromptPart, joined)])]

    async def _connected(self, stack: AsyncExitStack, make: Callable[..., Any], own: Any) -> Any:
        """Return pydantic-ai's agent, connected to its servers. One with an account may suspend the turn."""
        instructions = self.agent.instructions or self.settings.model_instructions
        found = servers(self.agent.mcp_file()).items()
        named = {name: each for name, each in found if self.access.has(name, each.allow)}
        instructions += self.access.told()
        turn = self.ctx, self.event, self.voice.place, self.agent.patience
        self.accounts = PersonsAccounts(named, *turn)
        while True:
            missing = await self.accounts.connect()
            told = instructions + (MISSING.format(", ".join(missing)) if missing else "")
            foreign = [self._tools_of(name, named[name]) for name in named if name not in missing]
            try:
                return await stack.enter_async_context(make(instructions=told, toolsets=[own, *foreign]))
            except Exception as error:
                if not self.accounts.refused:
                    name = type(error).__name__
                    raise UnavailableError(f"an MCP server cannot be reached: {name}") from error

    async def _check(self, what: str, text: str) -> None:
        """Let the guard check a text, as a step. Raise :class:`StoppedError` if it refuses."""
        if self.agent.guard is not None and text.strip():
            refusal = await self.ctx.step(f"guard {what}", self.agent.guard, what, text)
            if refusal is not None:
                raise StoppedError(str(refusal))

    def _tools_of(self, name: str, server: McpServer) -> ai.AbstractToolset[Any]:
        """Return a server's tools with their calls as steps, and with approval where it is needed."""
        demanded = server.must_have(name)
        bearer = None if self.accounts is None else self.accounts.bearer(name)
        stored = StoredCalls(server.toolset(name, bearer), self, server, name)
        return stored.approval_required(lambda _, tool, __: server.approval is True or tool.name in demanded)

    async def respond(self, ask: Callable[[], Awaitable[Any]]) -> ai.ModelResponse:
        """Return the model's next response, from a step, for which ``ask`` gets it.

        It is stored before anything else is done with it: it is paid for.
        """
        self._check_limits()
        self._speech = None
        scope = SCOPE.set(f"model:{self.usage['requests'] + 1}")
        try:
            async with AsyncExitStack() as self._speaking:
                response = with_own_ids(response_of(await stored(self.ctx, "model", ask)))
                self.answered = await self._add(response, asked=self._speech is not None)
                await self._say(response)
        finally:
            SCOPE.reset(scope)
        usage = self.usage
        usage["requests"] += 1
        for number, call in enumerate(response.tool_calls, 1):
            self.places[call.tool_call_id] = f"{usage['requests']}.{number}"
        if self.agent.guard is not None and (text := response.text):
            await self._check("answer", text)
            await self.voice.post(text, () if response.tool_calls else await below(*self._below))
        check_end(response)
        return response

    async def _add(self, response: ai.ModelResponse, *, asked: bool) -> str:
        """Add a response to what the turn has used, and count it if the model was asked now. Return its model."""
        used, priced = self.budget.used((response.metadata or {}).get(NAME) or "", response)
        if asked:
            await count(self.ctx, self.voice.place, used)
        self.priced |= priced
        self.cost += used.cost
        self.usage["input_tokens"] += used.input_tokens
        self.usage["output_tokens"] += used.output_tokens
        return used.model

    async def _say(self, response: ai.ModelResponse) -> None:
        """Let the message of a stored response end. If a death cut the message short, say it again."""
        speech = self._speech
        if speech is None and self.agent.guard is None and attempt_of(self.ctx).steps.past.is_over():
            speech = await self._speaking.enter_async_context(self.voice.speech())
            for part in response.parts:
                await speech.add(part.content if isinstance(part, ai.TextPart) else "")
        if speech is not None and speech.said and not response.tool_calls:
            speech.below = await below(*self._below)

    def _check_limits(self) -> None:
        settings, tokens = self.settings, self.settings.model_tokens - self.tokens_left
        if self.usage["requests"] >= settings.model_requests:
            most = f"ask the model {settings.model_requests} times"
            raise StoppedError(f"I stop here: I may {most} per question.")
        if tokens >= settings.model_tokens:
            raise StoppedError(f"I stop here: I may use {settings.model_tokens:,} tokens per question.")
        if self.budget.turn.is_used_up(Spent(tokens, self.cost)):
            raise StoppedError("I stop here: your question has used what I may spend on one.")

    async def _check_budget(self) -> None:
        """Raise :class:`StoppedError` if the person or the workspace has used what may be used today."""
        budget, (workspace, person) = self.budget, self._payer
        if not (budget.person or budget.workspace) or not workspace:
            return
        all_of_it, of_person = await patiently(self.ctx, AgentCalls.read_usage, workspace, person)
        if person and budget.person.is_used_up(of_person):
            what = "you have used what I may spend on you today"
            raise StoppedError(f"I stop here: {what}. Please ask tomorrow.")
        if budget.workspace.is_used_up(all_of_it):
            raise StoppedError("I stop here: what I may spend today is used up. Please ask tomorrow.")

    @property
    def _payer(self) -> tuple[str, str]:
        place = self.voice.place
        return place.workspace or "", place.user or ""

    async def ask(self, model: Model, messages: list[ai.ModelMessage], *given: Any) -> Any:
        """Ask the model, say in Slack what it says, and return its response as JSON."""
        await self._check_budget()
        await self.voice.think()
        with understood():
            async with (
                self.files.beside(messages) as messages,
                transcript(self.event, self.ctx, self.usage["requests"] + 1) as kept,
                traced(model).request_stream(messages, *given) as stream,
            ):
                self.files.sent()
                speaking = self.voice.speech(held=self.agent.guard is not None)
                self._speech = speech = await self._speaking.enter_async_context(speaking)
                length = Length()
                async for event in stream:
                    text = length.add(event)
                    await speech.add(text)
                    if kept is not None and self.agent.guard is None:
                        kept(text)
                return stored_form(stream.get())

    async def sum_up(self, name: str, text: str) -> str:
        """Let the model sum up a text, in a step of this name. Its tokens count as the turn's."""
        asked = False

        async def ask() -> Any:
            nonlocal asked
            await self._check_budget()
            asked = True
            model = model_of(self.settings, self.agent.model)
            return await ask_quietly(model, request_settings(self.settings), text)

        response = response_of(await stored(self.ctx, name, ask))
        await self._add(response, asked=asked)
        return response.text or ""

    @property
    def tokens_left(self) -> int:
        return self.settings.model_tokens - self.usage["input_tokens"] - self.usage["output_tokens"]

    async def call(self, name: str, arguments: Any, call: ai.RunContext[Any], function: Call) -> Any:
        """Return a tool's result, from a step. If it failed, the model gets the reason."""
        self.usage["tool_calls"] += 1
        if self.usage["tool_calls"] > CALLS_PER_REQUEST * self.settings.model_requests:
            raise StoppedError("I stop here: the model calls too many tools.")
        place, tool, title = self.places[call.tool_call_id or ""], self.tools.get(name), safe_name(name)
        await self.voice.session.show("processing")
        await self.voice.show(place, title)
        if tool is not None and tool.kind is not None:
            done = await self._delegate(tool.kind, arguments, place)
        else:
            done = await stored(self.ctx, f"{title} {place}", function, arguments)
        await self.voice.show(place, title, done)
        if "failed" in done:
            raise ai.ToolFailed(done["failed"])
        if changed := self.approvals.changed.get(call.tool_call_id or ""):
            return [changed, with_files(done["result"])]
        return with_files(done["result"])

    async def _delegate(self, kind: str, arguments: dict[str, Any], place: str) -> dict[str, Any]:
        """Let a child event answer, and return its answer. It says nothing in the thread, and has its own limits."""
        workspace, person = self._payer
        payload = {**owner_fields(self.event), "team": workspace, "user": person, **arguments}
        try:
            result = await self.ctx.run(kind, payload, key=place)
        except ChildError as error:
            return {"failed": str(error)[:LONGEST_RESULT]}
        answer = result.get("answer") if isinstance(result, dict) else None
        return {"result": result_shortened(result if answer is None else answer)}

    async def called(self, name: str, function: Call, limit: float | None, arguments: Any) -> dict[str, Any]:
        """Call a tool. Return its result, or what the model is told if it fails, or exceeds ``limit`` seconds."""
        tool = self.tools.get(name)
        if tool is not None and tool.timeout is not None:
            limit = duration(tool.timeout).total_seconds()
        try:
            with within_tool(name):
                async with asyncio.timeout(limit):
                    return {"result": result_shortened(await function(arguments))}
        except (ClaimLostError, SlackBusyError, ThreadGoneError):
            raise
        except Exception as error:  # noqa: BLE001 - the model may go on without this tool
            if self.accounts is not None and self.accounts.refused:
                raise UnavailableError("the person's account is refused", AT_ONCE) from None
            if isinstance(error, ai.ModelRetry | ai.ToolFailed):
                return {"failed": error.message[:LONGEST_RESULT]}
            self.ctx.log.warning("tool failed", tool=name, error=type(error).__name__)
            slow = f"no answer in {limit} s" if limit and isinstance(error, TimeoutError) else ""
            return {"failed": f"{type(error).__name__}: {str(error) or slow}"[:LONGEST_RESULT]}


def conversation(said: Sequence[ThreadMessage]) -> list[ai.ModelMessage]:
    return [
        ai.ModelResponse([ai.TextPart(each["text"])])
        if each["own"]
        else ai.ModelRequest([ai.UserPromptPart(each["text"])])
        for each in said
    ]


class StoredResponses(WrapperModel):
    """A model whose responses are steps."""

    def __init__(self, wrapped: Model, run: AgentTurn) -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(self, *given: Any) -> ai.ModelResponse:
        return await self._run.respond(partial(self._run.ask, self.wrapped, *given))


@dataclass
class StoredCalls(ai.WrapperToolset[Any]):
    """Tools whose calls are steps: the agent's own, or those of a ``server`` of this name."""

    run: AgentTurn
    server: McpServer | None = None
    name: str = ""

    async def __aenter__(self) -> Self:
        with outside():
            return await super().__aenter__()

    async def get_tools(self, ctx: ai.RunContext[Any]) -> dict[str, ai.ToolsetTool[Any]]:
        """Return the tools. Refuse a server that lacks a tool that needs approval: it may have another name."""
        if (server := self.server) is None:
            return await super().get_tools(ctx)
        try:
            async with asyncio.timeout(server.bound(self.name)):
                tools = await super().get_tools(ctx)
        except TimeoutError:
            raise UnavailableError("an MCP server did not list its tools in time") from None
        if missing := sorted(server.must_have(self.name) - tools.keys()):
            raise ModelRefusedError(f"the MCP server has no tool {missing[0]}, which needs approval")
        # What runs with a person's account is approved by that person alone.
        by = self.run.voice.place.user or [] if server.account else server.by
        for name in tools:
            self.run.approvals.may(name, by, server.allow)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: ai.RunContext[Any], tool: ai.ToolsetTool[Any]
    ) -> Any:
        function = partial(self.wrapped.call_tool, name, ctx=ctx, tool=tool)
        limit = None if self.server is None else self.server.bound(self.name, name)
        return await self.run.call(name, tool_args, ctx, partial(self.run.called, name, function, limit))
