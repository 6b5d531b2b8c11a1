"""What models cost and may cost: the team's prices and limits, from a file, and the prices of genai-prices."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from genai_prices.types import ModelPrice
from pydantic import BaseModel, Field
from pydantic_ai import ModelResponse, RequestUsage
from pydantic_ai.embeddings import EmbeddingResult
from pydantic_ai.models import Model

from surelane.errors import SettingsError
from surelane_agents.calls import ModelUse, Spent
from surelane_agents.errors import told_of

Money = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel, extra="forbid"):
    """The price of a million tokens, in the team's currency.

    ``cached``, ``cache_write``: of input that a provider's cache has, or is to have; by default as other input.
    """

    input: Money
    output: Money
    cached: Money | None = None
    cache_write: Money | None = None

    def cost(self, usage: RequestUsage) -> Decimal:
        cache = {"cache_read_mtok": self.cached, "cache_write_mtok": self.cache_write}
        price = ModelPrice(input_mtok=self.input, output_mtok=self.output, **cache)
        return price.calc_price(usage)["total_price"]


class Allowance(BaseModel, extra="forbid"):
    """What may be used; ``None``: as much as wanted."""

    tokens: Annotated[int, Field(ge=0)] | None = None
    money: Money | None = None

    def is_used_up(self, spent: Spent) -> bool:
        tokens, money = self.tokens, self.money
        return (tokens is not None and spent.tokens >= tokens) or (money is not None and spent.cost >= money)

    def __bool__(self) -> bool:
        return self.tokens is not None or self.money is not None


class Budget(BaseModel, extra="forbid"):
    """Prices by the names of models, and limits: of a turn, and of a day (UTC) for a person and a workspace."""

    prices: dict[str, Price] = {}
    catalog: bool = True
    """Whether models without a price here have that of genai-prices, in US dollars."""
    turn: Allowance = Allowance()
    person: Allowance = Allowance()
    workspace: Allowance = Allowance()

    def used(self, name: str, response: ModelResponse | EmbeddingResult) -> tuple[ModelUse, bool]:
        """Return what a response of the model of this name used, and whether it has a price."""
        cost, usage = self.cost(name, response), response.usage
        return ModelUse(name, usage.input_tokens, usage.output_tokens, cost or Decimal(0)), cost is not None

    def cost(self, name: str, response: ModelResponse | EmbeddingResult) -> Decimal | None:
        """Return what a response of the model of this name cost; ``None`` without a price."""
        if (price := self.prices.get(name)) is not None:
            return price.cost(response.usage)
        if not self.catalog or not response.model_name:
            return None
        try:
            return response.cost().total_price
        except (LookupError, ValueError):  # the catalog has no such model, or its server gave no usage
            return None

    def check(self, models: Mapping[str, Model]) -> None:
        """Raise :class:`SettingsError` if money is limited and one of these models, by name, has no price."""
        if all(limit.money is None for limit in (self.turn, self.person, self.workspace)):
            return
        for name, model in models.items():
            asked = ModelResponse([], usage=RequestUsage(input_tokens=1), model_name=model.model_name)
            asked = replace(asked, provider_name=model.system, provider_url=model.base_url)
            if self.cost(name, asked) is None:
                why = f"{name!r} needs a price, because money is limited"
                raise SettingsError(f"SURELANE_MODEL_BUDGET: {why}")


@lru_cache(maxsize=8)
def budget_of(path: Path | None) -> Budget:
    """Read the file of ``SURELANE_MODEL_BUDGET``, or raise :class:`SettingsError`. Without one nothing is limited."""
    if path is None:
        return Budget()
    with told_of("SURELANE_MODEL_BUDGET", path):
        return Budget.model_validate_json(path.read_bytes())
