"""Ask people in the thread whether the model may call a tool."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pydantic_ai as ai

from surelane.text import escaped
from surelane_agents.context.thread import approved_in
from surelane_agents.people.access import Access, Allow, Listed, person_of
from surelane_agents.reply.shown import safe_name, shown_arguments, visible
from surelane_agents.reply.voice import Voice
from surelane_worker import Answer, Context, Event
from surelane_worker.handling.asks import LONGEST_INITIAL, People
from surelane_worker.handling.outcomes import Pause

LONGEST_ARGUMENTS = 20_000
"""Characters of arguments that a question shows. A call with more is rejected: it cannot be judged."""
LONGEST_REASON = 1_000
"""Characters of a person's reason that the model gets."""
APPROVE, REJECT = "Approve", "Reject"
ALWAYS, REASON, CHANGE = "Approve in this thread", "Reject because\u2026", "Change\u2026"
"""In the thread people are not asked about the tool again while the same person asks. A reason. Other arguments."""
MOST_TRIES = 5
"""How often a call is asked about whose new arguments cannot be read."""


class Approvals:
    """The questions of one attempt of a turn.

    ``changed``: what the model learns of arguments that a person changed, by the call's id. ``standing``: pairs of a
    person who asks and a tool, about which people are not asked again in this thread.
    """

    def __init__(
        self, event: Event, ctx: Context, voice: Voice, access: Access, patience: Pause, last: bool
    ) -> None:
        """``patience``: how long a question waits. ``last``: no further attempt is left."""
        self._event, self._ctx, self._voice, self._access = event, ctx, voice, access
        self._patience, self._last = patience, last
        self._approvers: dict[str, People] = {}
        self.changed: dict[str, dict[str, Any]] = {}
        self.standing: set[tuple[str, str]] = set()

    def may(self, tool: str, by: People, own: Listed | None) -> None:
        """Note who may approve a tool: ``by``, or else who may use it. Of two tools of one name, the first counts."""
        self._approvers.setdefault(tool, partial(self._uses, self._access.of(own)) if by is None else by)

    async def _uses(self, listed: Allow, user: str) -> bool:
        """Return whether a person may use a tool. Who asks may: the tool is offered to no others."""
        asker, place = self._access.person, self._voice.place
        if asker["id"] == user:
            return True
        its = replace(place, user=user)
        person = await person_of(self._event, self._ctx, its, listed.groups, last=self._last)
        return listed.permits(person, place.channel)

    async def recall(self) -> None:
        """Read about which tools people are not asked again, as the thread's turns before say."""
        place = self._voice.place
        if place.thread_ts and place.thread_ts != place.message_ts:
            known = await self._ctx.step("approved here", approved_in, self._event, self._ctx, place)
            self.standing |= {(user, tool) for user, tool in known}

    async def ask(self, _: ai.RunContext[Any], requests: ai.DeferredToolRequests) -> ai.DeferredToolResults:
        """Ask about all calls that need approval, at once. The turn is suspended meanwhile."""
        # An answer approves no call that was asked about beside it: that question stands, and has its own answer.
        asker, standing = self._access.person["id"], frozenset(self.standing)
        asked = [call for call in requests.approvals if (asker, call.tool_name) not in standing]
        asking = [asyncio.create_task(self._asked(call)) for call in asked]
        if asking:
            await self._voice.session.show("suspended")
        try:
            answers = await asyncio.gather(*asking)
        finally:
            # Where one could not be asked, another may suspend the turn, and nothing would ask it again.
            for each in asking:
                each.cancel()
        approvals: dict[str, Any] = {call.tool_call_id: ai.ToolApproved() for call in requests.approvals}
        approvals |= {call.tool_call_id: answer for call, answer in zip(asked, answers, strict=True)}
        return requests.build_results(approvals=approvals)

    async def _asked(self, call: ai.ToolCallPart) -> ai.ToolApproved | ai.ToolDenied:
        shown, name, wrong = shown_arguments(call), safe_name(call.tool_name), ""
        if not self._voice.heard:
            return ai.ToolDenied("The call needs approval, and there is no channel to ask in.")
        if len(shown) > LONGEST_ARGUMENTS:
            return ai.ToolDenied("The call needs approval, and its arguments are too long to be judged.")
        written = self._written(call)
        standing = [ALWAYS] if self._access.person["id"] and self._voice.place.thread_ts else []
        answer = None
        for _ in range(MOST_TRIES):
            answer = await self._ctx.ask(
                self._event,
                f"{wrong}May I call *{name}*?\n```{shown}```",
                [APPROVE, REJECT, *standing, *written],
                written=written,
                timeout=self._patience,
                by=self._approvers.get(call.tool_name, []),
                name=f"approve {name}",
                **self._voice.look,
            )
            if answer is None or answer.choice != CHANGE:
                break
            try:
                return self._with(call, answer)
            except ValueError as error:
                wrong = f"These arguments cannot be read: {escaped(str(error))}.\n"
        if answer is None:
            return ai.ToolDenied("The call was not approved in time. Do not repeat it.")
        if answer.choice == ALWAYS:
            self.standing.add((self._access.person["id"], call.tool_name))
        if answer.choice in (APPROVE, ALWAYS):
            return ai.ToolApproved()
        because = f" because: {answer.text[:LONGEST_REASON]}\n" if answer.choice == REASON else ". "
        return ai.ToolDenied(f"The call was rejected by <@{answer.user}>{because}Do not repeat it.")

    def _with(self, call: ai.ToolCallPart, answer: Answer) -> ai.ToolApproved:
        """Approve a call with other arguments, and note what the model learns. ``ValueError``: they are no object."""
        arguments = json.loads(answer.text)
        if not isinstance(arguments, dict):
            raise ValueError("write an object, such as {}")  # noqa: TRY004 - of a text
        told = f"<@{answer.user}> approved the call with other arguments. These count."
        self.changed[call.tool_call_id] = {"note": told, "arguments": arguments}
        return ai.ToolApproved(override_args=arguments)

    @staticmethod
    def _written(call: ai.ToolCallPart) -> dict[str, str]:
        """Return the choices that take a text. Arguments that a modal cannot show whole are not changed."""
        arguments = json.dumps(call.args_as_dict(), indent=1, ensure_ascii=False)
        fits = len(arguments) <= LONGEST_INITIAL and arguments == visible(arguments)
        return {REASON: ""} | ({CHANGE: arguments} if fits else {})
