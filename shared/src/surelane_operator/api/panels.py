"""The reads of ``/v1`` beside events: messages, kinds, workers, workflows, questions, the doctor's findings."""

from collections.abc import Callable, Mapping
from datetime import datetime

from pydantic import Field

from surelane.calls import Calls, Pool
from surelane_operator.api.models import EventPath, FindQuery, Kind, Place, Strict
from surelane_operator.api.operation import Operation, Refused
from surelane_operator.filters import cursor_after
from surelane_operator.operations import Operations
from surelane_operator.panels.examinations import Examination, Examinations
from surelane_operator.panels.kinds import KindPage, read_kinds
from surelane_operator.panels.messages import Lookup, look_up
from surelane_operator.panels.overview import Overview, read_overview
from surelane_operator.panels.questions import QuestionPage, list_questions
from surelane_operator.panels.schedules import ScheduleList, read_schedules
from surelane_operator.panels.workers import WorkerList, read_workers
from surelane_operator.panels.workflows import Workflow, WorkflowPage, list_workflows, read_workflow

_UNKNOWN = {404: "there is no such event"}


class KindsQuery(Strict):
    """The query of ``GET /v1/kinds``."""

    after: Kind | None = Field(None, description="`next` of the page before")
    limit: int = Field(100, ge=1, le=1000)


class PageQuery(Strict):
    """The query of a list."""

    limit: int = Field(20, ge=1, le=200)
    cursor: Place | None = Field(None, description="`next` of the page before")


class WorkflowQuery(Strict):
    """The query of ``GET /v1/workflows/{id}``."""

    after: int = Field(0, ge=0, le=2**63 - 1, description="begin with the child after this id")


class PanelsApi:
    """The operations."""

    def __init__(
        self,
        pool: Pool,
        examinations: Examinations,
        operations: Operations,
        received: Callable[[], Mapping[str, int]],
    ) -> None:
        """Read the database behind ``pool``. ``received`` says what this process has received."""
        self._calls = Calls(pool)
        self._operations = operations
        self._examinations = examinations
        self._received = received

    def operations(self) -> list[Operation]:
        """Return the operations, for the API's list."""
        return [
            Operation("GET", "/v1/find", self.find_message),
            Operation("GET", "/v1/overview", self.get_overview),
            Operation("GET", "/v1/kinds", self.list_kinds),
            Operation("GET", "/v1/cron", self.list_cron),
            Operation("GET", "/v1/workers", self.list_workers),
            Operation("GET", "/v1/workflows", self.list_workflows),
            Operation("GET", "/v1/workflows/{id}", self.get_workflow, refusals=_UNKNOWN),
            Operation("GET", "/v1/questions", self.list_questions),
            Operation("GET", "/v1/doctor", self.get_findings),
            Operation("POST", "/v1/doctor", self.examine),
        ]

    async def find_message(self, query: FindQuery) -> Lookup:
        """Find a message's events, and why each waits or how it ended; without one, what may have happened."""
        return await look_up(self._operations, self._calls, query.text, self._received)

    async def get_overview(self) -> Overview:
        """Show what waits the longest and why, what failed or expired lately, and how fast it goes."""
        return await read_overview(self._operations, self._calls)

    async def list_kinds(self, query: KindsQuery) -> KindPage:
        """List kinds, with their counts, limits and workers."""
        return await read_kinds(self._operations, self._calls, query.after, query.limit)

    async def list_cron(self) -> ScheduleList:
        """List the named schedules, with their next firings and last runs."""
        return await read_schedules(self._calls, self._operations.sealing)

    async def list_workers(self) -> WorkerList:
        """List workers, and what each runs now."""
        return await read_workers(self._operations, self._calls)

    async def list_workflows(self, query: PageQuery) -> WorkflowPage:
        """List workflows, newest first."""
        found = await list_workflows(self._calls, query.cursor, query.limit)
        full = len(found) == query.limit
        return WorkflowPage(
            workflows=found, next=_after(found[-1].id, found[-1].finished_at) if full else None
        )

    async def get_workflow(self, path: EventPath, query: WorkflowQuery) -> Workflow:
        """Show the workflow of an event as a tree."""
        workflow = await read_workflow(self._calls, path.id, query.after)
        if workflow is None:
            raise Refused(404, _UNKNOWN[404])
        return workflow

    async def list_questions(self, query: PageQuery) -> QuestionPage:
        """List the questions that wait for people, newest first."""
        found = await list_questions(self._calls, query.cursor, query.limit, self._operations.sealing)
        full = len(found) == query.limit
        return QuestionPage(questions=found, next=_after(found[-1].id, found[-1].asked_at) if full else None)

    async def get_findings(self) -> Examination:
        """Show what the doctor found in the last minute."""
        return await self._examinations.latest()

    async def examine(self) -> Examination:
        """Run the doctor now."""
        return await self._examinations.again()


def _after(identity: int, moment: datetime | None) -> str:
    return cursor_after({"id": identity, "finished_at": moment})
