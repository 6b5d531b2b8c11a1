"""Count what models use, by the model and the workspace."""

from collections import Counter
from secrets import token_hex

from opentelemetry import metrics

from surelane.slack import Place
from surelane_agents.calls import AgentCalls, ModelUse, patiently
from surelane_service.figures import MOST_KINDS
from surelane_service.probes import BoundedNames
from surelane_service.telemetry.setup import SCHEMA_URL, counted
from surelane_worker.handling.context import Context

LABELS = ("gen_ai.request.model", "surelane.workspace")
_tokens: Counter[tuple[str, ...]] = Counter()
_costs: dict[tuple[str, ...], float] = {}
_workspaces = BoundedNames(MOST_KINDS)


def publish() -> None:
    """Make these metrics of the process."""
    meter = metrics.get_meter("surelane_agents", schema_url=SCHEMA_URL)
    tokens, costs = counted(_tokens, *LABELS, "gen_ai.token.type"), counted(_costs, *LABELS)
    for name, description, observe in (
        ("surelane.model.tokens", "Tokens that models used.", tokens),
        ("surelane.model.cost", "What models cost.", costs),
    ):
        meter.create_observable_counter(name, [observe], description=description)


async def count(ctx: Context, place: Place, used: ModelUse) -> None:
    """Count what one response of a model used, for a person and a workspace, in the database and in these metrics."""
    workspace, person = place.workspace or "", place.user or ""
    await patiently(ctx, AgentCalls.count_usage, workspace, person, used, token_hex(8))
    key = used.model, _workspaces(workspace or "none")
    _tokens[(*key, "input")] += used.input_tokens
    _tokens[(*key, "output")] += used.output_tokens
    _costs[key] = _costs.get(key, 0.0) + float(used.cost)
