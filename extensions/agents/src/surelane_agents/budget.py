"""What models may cost: the team's prices and limits, from a file."""

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from surelane.errors import SettingsError
from surelane_agents.calls import Spent

MILLION = 1_000_000
Money = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel, extra="forbid"):
    """The price of a million tokens, in the team's currency."""

    input: Money
    output: Money


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
    turn: Allowance = Allowance()
    person: Allowance = Allowance()
    workspace: Allowance = Allowance()

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> Decimal:
        """Return what tokens cost; 0 without a price."""
        price = self.prices.get(model)
        if price is None:
            return Decimal(0)
        return (price.input * input_tokens + price.output * output_tokens) / MILLION

    def check(self, models: Sequence[str]) -> None:
        """Raise :class:`SettingsError` if money is limited and a model has no price."""
        missing = [name for name in models if name not in self.prices]
        if missing and any(limit.money is not None for limit in (self.turn, self.person, self.workspace)):
            raise SettingsError(
                f"SURELANE_MODEL_BUDGET: {missing[0]!r} needs a price, because money is limited"
            )


@lru_cache(maxsize=8)
def budget_of(path: Path | None) -> Budget:
    """Read the file of ``SURELANE_MODEL_BUDGET``, or raise :class:`SettingsError`. Without one nothing is limited."""
    if path is None:
        return Budget()
    try:
        return Budget.model_validate_json(path.read_bytes())
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise SettingsError(f"SURELANE_MODEL_BUDGET: {path}: {'; '.join(wrong)}") from None
    except OSError as error:
        raise SettingsError(f"SURELANE_MODEL_BUDGET: {error}") from None
