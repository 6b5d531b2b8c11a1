"""The screens, in the order in which the navigation lists them."""

from surelane_operator.console.screen import Screen
from surelane_operator.console.screens import queue
from surelane_operator.console.screens.events import event, events, find, thread
from surelane_operator.console.screens.queue import overview

SCREENS = (
    Screen("overview", "/", "Overview", overview, every=2.0),
    Screen("events", "/events", "Events", events),
    Screen("event", "/events/{id}", "Event", event, listed=False, within="events", every=2.0),
    Screen("thread", "/thread", "Thread", thread, listed=False, within="events", every=3.0),
    Screen("find", "/find", "Find", find, listed=False, within="events"),
    Screen("waiting", "/waiting", "Waiting for people", queue.waiting),
    Screen("kinds", "/kinds", "Kinds", queue.kinds),
    Screen("kind", "/kinds/{kind}", "Kind", queue.kind, listed=False, within="kinds"),
    Screen("feedback", "/feedback", "Feedback", queue.feedback, every=None),
    Screen("workflows", "/workflows", "Workflows", queue.workflows),
    Screen("workflow", "/workflows/{id}", "Workflow", queue.workflow, listed=False, within="workflows"),
    Screen("schedules", "/schedules", "Schedules", queue.schedules),
    Screen("schedule", "/schedules/{name}", "Schedule", queue.schedule, listed=False, within="schedules"),
    Screen("workers", "/workers", "Workers", queue.workers),
    Screen("worker", "/workers/{name}", "Worker", queue.worker, listed=False, within="workers"),
    Screen("shards", "/shards", "Installations", queue.shards, listed=False, within="overview"),
    Screen("doctor", "/doctor", "Doctor", queue.doctor, every=10.0),
    Screen("usage", "/usage", "Usage of models", queue.usage, every=None),
    Screen("actions", "/actions", "Actions", queue.actions),
)
