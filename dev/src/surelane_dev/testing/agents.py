"""Give agents their settings in tests, where ``surelane-agents`` is installed."""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from surelane_service.service_settings import load_settings


def agents_use(**given: Any) -> AbstractContextManager[object]:  # noqa: ANN401 - pydantic checks them
    """Let agents use the environment's settings in the block, and what is ``given`` beside them."""
    if find_spec("surelane_agents") is None:
        return nullcontext()
    from surelane_agents.agent_settings import AgentSettings, using  # noqa: PLC0415 - it is optional

    settings = load_settings(AgentSettings, **given)
    if settings.model is not None and find_spec("pydantic_ai"):
        # It takes seconds, and on a busy machine more than a test waits for a handler.
        import_module("surelane_agents.answering")
    return using(settings)
