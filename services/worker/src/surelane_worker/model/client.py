"""The model of the settings, and what the errors of its server mean."""

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

from openai import AsyncOpenAI
from pydantic import SecretStr
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelQuotaExceededError
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from surelane.errors import SettingsError
from surelane_worker.model.errors import RefusedError, UnavailableError
from surelane_worker.worker_settings import WorkerSettings

LONGEST_REASON = 300
"""Characters of an error that history keeps."""
LONGEST_WAIT = 3600.0
"""Most seconds that a model's server may ask to wait."""
PASSING = (408, 409, 425, 429)
"""Statuses below 500 after which the same request may succeed."""


def model_of(settings: WorkerSettings) -> Model:
    """Return the model that the settings name. It is the same object for all turns, with its connections.

    Raises:
        SettingsError: they name none.
    """
    if settings.model_url is None or settings.model is None:
        raise SettingsError("an agent needs SURELANE_MODEL_URL and SURELANE_MODEL")
    return _model(
        settings.model_url, settings.model, settings.model_key, settings.model_timeout.total_seconds()
    )


@lru_cache(maxsize=8)
def _model(url: str, name: str, key: SecretStr | None, timeout: float) -> Model:
    client = AsyncOpenAI(
        base_url=url,
        api_key="none" if key is None else key.get_secret_value(),
        timeout=timeout,
        max_retries=0,  # the queue repeats a failed attempt
    )
    # Servers other than OpenAI's may refuse the parts of the protocol that are new.
    profile = OpenAIModelProfile(openai_supports_strict_tool_definition=False)
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client), profile=profile)


def failure(error: ModelAPIError, key: SecretStr | None) -> UnavailableError | RefusedError:
    """Return what an error of the model's server means. Its text is cut, and does not quote our key."""
    if not isinstance(error, ModelHTTPError):
        return UnavailableError(f"the model's server cannot be reached: {type(error).__name__}")
    body = error.body if isinstance(error.body, Mapping) else {}
    text = str(body.get("message") or error.body or "")
    if key is not None:
        text = text.replace(key.get_secret_value(), "…")
    said = f"the model's server answers {error.status_code}: {text}"[:LONGEST_REASON]
    if isinstance(error, ModelQuotaExceededError):
        return RefusedError(said)
    if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status_code in PASSING:
        after = None if error.retry_after is None else min(max(error.retry_after, 0.0), LONGEST_WAIT)
        return UnavailableError(said, after)
    return RefusedError(said)
