"""The errors that a handler may catch, and the one of handlers that cannot be registered."""

from surelane_worker.handling.answers import AnswerError
from surelane_worker.handling.attempt import TagError
from surelane_worker.handling.children import ChildError
from surelane_worker.handling.handler import HandlersError
from surelane_worker.handling.shapes import StepMismatchError
from surelane_worker.handling.steps import StepError

__all__ = ["AnswerError", "ChildError", "HandlersError", "StepError", "StepMismatchError", "TagError"]
