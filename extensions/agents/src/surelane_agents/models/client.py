"""The models of an agent, and what the errors of their servers mean."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import SecretStr
from pydantic_ai import ModelSettings, exceptions
from pydantic_ai.models import Model, StreamedResponse, create_async_httpx2_client, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider

from surelane.errors import SettingsError
from surelane_agents.agent_settings import AgentSettings
from surelane_agents.calls import NAME
from surelane_agents.errors import ModelRefusedError, UnavailableError
from surelane_agents.models.carried import fill

LONGEST_REASON = 300
"""Characters of an error that history keeps."""
LONGEST_WAIT = 3600.0
"""Most seconds that a model's server may ask to wait."""
PASSING = (408, 409, 425, 429)
"""Statuses below 500 after which the same request may succeed."""
FINAL_CODES = "empty_", "image_", "invalid_", "unsupported_"
"""How codes of errors without a status begin, in the middle of a response, that the same request has each time."""
FINAL = exceptions.ModelQuotaExceededError, exceptions.ModelRequestRejectedError
"""Errors, with or without a status, after which the same request fails again."""
CARRYING = frozenset(
    """
    alibaba anthropic azure cerebras deepseek fireworks google litellm meta moonshotai nebius ollama openai openai-chat
    openai-responses openrouter ovhcloud sambanova together vercel vllm zai
    """.split()  # noqa: SIM905 - a list literal would fill a page
)
"""Providers that take an HTTP client of ours, which sends files in pieces."""
WHOLE = 8
"""How often a file is in memory where a client cannot send it in pieces."""
SHORTEST_SECRET = 8
SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""How names of variables end whose values no error may quote, because providers read their keys there."""


class NamedModel(WrapperModel):
    """A model that stores its name with each response. So a chain's response says which model answered."""

    def __init__(self, wrapped: Model, name: str, *, carries: bool) -> None:
        """``carries``: whether its HTTP client sends files in pieces."""
        super().__init__(wrapped)
        self.name, self.carries = name, carries

    @asynccontextmanager
    async def request_stream(self, *given: Any, **named: Any) -> AsyncGenerator[StreamedResponse]:
        async with self.wrapped.request_stream(*given, **named) as stream:
            stream.metadata = {**(stream.metadata or {}), NAME: self.name}
            yield stream


def model_of(settings: AgentSettings, names: str | None = None) -> Model:
    """Return a model, or a chain of models. It is the same object for all turns of an event loop, with its connections.

    ``names``: the models, separated by commas; by default those of the settings. Each is asked if those before it fail
    before they say anything. It raises :class:`SettingsError` where one cannot be used.
    """
    names = names or settings.model
    if names is None:
        raise SettingsError("an agent needs SURELANE_MODEL, or a model of its own")
    return _chain(names, settings.model_url, settings.model_key, running_loop())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop to which connections that are opened now belong."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


@lru_cache(maxsize=32)
def _chain(names: str, url: str | None, key: SecretStr | None, _: asyncio.AbstractEventLoop | None) -> Model:
    models = [_model(name, url, key) for name in map(str.strip, names.split(","))]
    return models[0] if len(models) == 1 else FallbackModel(*models)


def times_in_memory(model: Model) -> int:
    """Return how often a file is in memory while a model of :func:`model_of` is asked about it."""
    return 1 if all(each.carries for each in chained(model)) else WHOLE


def chained(model: Model) -> list[NamedModel]:
    """Return the models of a chain of :func:`model_of`."""
    models = model.models if isinstance(model, FallbackModel) else [model]
    return [each for each in models if isinstance(each, NamedModel)]


def _model(name: str, url: str | None, key: SecretStr | None) -> NamedModel:
    if url is not None and not names_provider(name):
        # Servers other than OpenAI's may refuse the parts of the protocol that are new.
        profile = OpenAIModelProfile(openai_supports_strict_tool_definition=False)
        model = OpenAIChatModel(name, provider=at_server(url, key), profile=profile)
        return NamedModel(model, name, carries=True)
    carries = name.partition(":")[0] in CARRYING
    with usable(name):
        return NamedModel(infer_model(name, _provider if carries else infer_provider), name, carries=carries)


@contextmanager
def usable(name: str) -> Iterator[None]:
    """Raise :class:`SettingsError` where the block cannot make the model of this name."""
    try:
        yield
    except (exceptions.UserError, ImportError, ValueError) as error:
        raise SettingsError(f"the model {name!r} cannot be used: {error}") from error


def at_server(url: str, key: SecretStr | None) -> OpenAIProvider:
    """Return the provider of models at ``SURELANE_MODEL_URL``. The queue repeats attempts, so its client does not."""
    http = DefaultAsyncHttpxClient(event_hooks={"request": [fill]})
    secret = "none" if key is None else key.get_secret_value()
    client = AsyncOpenAI(base_url=url, api_key=secret, http_client=http, max_retries=0)
    return OpenAIProvider(openai_client=client)


def _provider(name: str) -> Provider[Any]:
    client = create_async_httpx2_client()
    client.event_hooks = {"request": [fill]}
    make: Any = infer_provider_class(name)
    return make(http_client=client)  # type: ignore[no-any-return]


def names_provider(name: str) -> bool:
    """Whether a name begins with a provider of pydantic-ai's. Names such as ``llama3:8b`` do not."""
    try:
        infer_provider_class(name.partition(":")[0])
    except ImportError:
        return True
    except ValueError:
        return False
    return ":" in name


def request_settings(settings: AgentSettings) -> ModelSettings:
    """Return what holds for each request: the longest silence, and no repeats, because the queue repeats attempts."""
    return ModelSettings(timeout=settings.model_timeout.total_seconds(), max_retries=0)


@contextmanager
def understood() -> Iterator[None]:
    """Raise errors of a model's server in the block as what they mean for a turn."""
    try:
        yield
    except (exceptions.ModelAPIError, exceptions.FallbackExceptionGroup) as error:
        raise failure(error) from None
    except exceptions.UnexpectedModelBehavior as error:
        raise UnavailableError(f"the model's response cannot be read: {type(error).__name__}") from None


def failure(
    error: exceptions.ModelAPIError | exceptions.FallbackExceptionGroup,
) -> UnavailableError | ModelRefusedError:
    """Return what an error means. After a chain the turn is repeated if one of its models may answer later."""
    errors = error.exceptions if isinstance(error, exceptions.FallbackExceptionGroup) else [error]
    meanings = [_failure(each) for each in errors if isinstance(each, exceptions.ModelAPIError)]
    passing = [each for each in meanings if isinstance(each, UnavailableError)]
    return min(passing, key=lambda each: each.after or 0.0) if passing else meanings[-1]


def _failure(error: exceptions.ModelAPIError) -> UnavailableError | ModelRefusedError:
    """Return what an error means. One in the middle of a response may have no status. Its text quotes no secret."""
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    if status is None and not (error.body or error.provider_error_code):
        return UnavailableError(f"the model's server cannot be reached: {type(error).__name__}")
    body = error.body if isinstance(error.body, Mapping) else {}
    inner = body.get("error")
    inner = inner.get("message") if isinstance(inner, Mapping) else inner
    text = str(body.get("message") or inner or error.body or error.message)
    for secret in _secrets():
        text = text.replace(secret, "…")
    said = f"the model's server answers {status or 'an error'}: {text}"[:LONGEST_REASON]
    if status is None:
        refused = (error.provider_error_code or "").startswith(FINAL_CODES)
    else:
        refused = status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in PASSING
    if refused or isinstance(error, FINAL):
        return ModelRefusedError(said)
    after = None if error.retry_after is None else min(max(error.retry_after, 0.0), LONGEST_WAIT)
    return UnavailableError(said, after)


def _secrets() -> Sequence[str]:
    found = {value for name, value in os.environ.items() if name.endswith(SECRET)}
    return sorted((value for value in found if len(value) >= SHORTEST_SECRET), key=len, reverse=True)
