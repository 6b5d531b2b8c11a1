"""The screens, in the order in which the navigation lists them."""

from surelane_operator.console.screen import Screen, Sources
from surelane_operator.console.screens.actions import actions
from surelane_operator.console.screens.doctor import doctor
from surelane_operator.console.screens.event import event
from surelane_operator.console.screens.events import events
from surelane_operator.console.screens.find import find
from surelane_operator.console.screens.kinds import kind, kinds
from surelane_operator.console.screens.overview import overview
from surelane_operator.console.screens.schedules import schedule, schedules
from surelane_operator.console.screens.thread import thread
from surelane_operator.console.screens.waiting import waiting
from surelane_operator.console.screens.workers import worker, workers
from surelane_operator.console.screens.workflows import workflow, workflows


def all_screens(sources: Sources) -> list[Screen]:
    """Return all screens."""
    return [
        overview(sources),
        events(sources),
        event(sources),
        thread(sources),
        find(sources),
        waiting(sources),
        kinds(sources),
        kind(sources),
        workflows(sources),
        workflow(sources),
        schedules(sources),
        schedule(sources),
        workers(sources),
        worker(sources),
        doctor(sources),
        actions(sources),
    ]
