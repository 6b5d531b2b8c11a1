"""Workflows: trees of the events that a fan-out stored and of the continuations that wait for them."""

from datetime import datetime
from typing import Annotated, get_args

from pydantic import AfterValidator, BaseModel, Field

from surelane.calls import Calls
from surelane.json_text import read_json
from surelane_operator.reads.filters import Cursor, Status, keyset

PAGE = 50
"""Children that are shown of one event."""
DEPTH = 4
"""Levels that are read at once. Deeper ones have a page of their own."""
MOST = 200
"""Events of a tree that are read at once."""


def _in_order(counts: dict[Status, int] | None) -> dict[Status, int] | None:
    """Return the counts in the order of an event's life."""
    return counts and {status: counts[status] for status in get_args(Status) if status in counts}


class Ancestor(BaseModel):
    """A continuation on the way from a workflow's root."""

    id: int
    kind: str
    status: Status
    item_key: str | None


class Node(BaseModel):
    """An event of a workflow."""

    id: int
    kind: str
    status: Status
    attempts: int
    item_key: str | None
    locked_by: str | None
    run_at: datetime | None
    enqueued_at: datetime
    finished_at: datetime | None
    reason: str | None
    error: str | None
    continuation_id: int | None = Field(description="the event that waits for this one to end")
    waits_for: int | None = Field(description="of a continuation: how many events it still waits for")
    continues: int | None = Field(description="of a continuation: the event that fanned out")
    children: Annotated[dict[Status, int] | None, AfterValidator(_in_order)] = Field(
        description="of a continuation: the events that it waits for or waited for, by state"
    )


class Tree(Node):
    """An event, and those below it as far as they were read."""

    below: list["Tree"] = Field(default_factory=list)
    more: int | None = Field(
        None, description="the id after which the next page of `below` begins; null: that is all"
    )


class Workflow(BaseModel):
    """A workflow as it is seen from one of its events."""

    path: list[Ancestor] = Field(
        description="the continuations that wait for this event's end, the outermost first"
    )
    tree: Tree


class WorkflowPage(BaseModel):
    """A page of workflows, newest first: live ones, then workflows that ended in the last 30 days."""

    workflows: list[Node]
    next: str | None = Field(description="the cursor of the next page; null: this is the last page")


async def list_workflows(calls: Calls, after: Cursor | None = None, limit: int = 20) -> WorkflowPage:
    """Return a page of workflows, by their outermost continuations."""
    rows = await calls.rows("list_workflows", *keyset(after), limit)
    nodes = [Node.model_validate(read_json(row[0])) for row in rows]
    following = Cursor(nodes[-1].id, nodes[-1].finished_at).text() if len(nodes) == limit else None
    return WorkflowPage(workflows=nodes, next=following)


async def read_workflow(calls: Calls, identity: int, after: int = 0) -> Workflow | None:
    """Return the workflow of an event, beginning with the child ``after`` this id; ``None``: there is no such event."""
    text = await calls.call("workflow", identity)
    if text is None:
        return None
    row = read_json(text)
    tree = Tree.model_validate(row)
    await _read_below(calls, tree, after)
    return Workflow(path=row["path"], tree=tree)


async def _read_below(calls: Calls, root: Tree, after: int) -> None:
    """Read the levels below an event, the uppermost first, until there are enough events."""
    level, read = [root], 1
    for _ in range(DEPTH):
        following: list[Tree] = []
        for node in level:
            if read >= MOST:
                return
            await _read_children(calls, node, after if node is root else 0, min(PAGE, MOST - read))
            read += len(node.below)
            following += [child for child in node.below if child.children]
        level = following


async def _read_children(calls: Calls, node: Tree, after: int, limit: int) -> None:
    if not node.children:
        return
    rows = await calls.rows("workflow_below", node.id, after, limit)
    node.below = [Tree.model_validate(read_json(row[0])) for row in rows]
    node.more = node.below[-1].id if len(node.below) == limit else None
