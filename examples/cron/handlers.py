"""Read the providers' prices every five minutes, by a schedule declared beside its handler.

``surelane cron list`` shows it; ``surelane cron delete refresh-prices`` removes it until the next worker starts.
"""

import hashlib
import json
from pathlib import Path

from surelane_worker import Context, Event, Handlers

handlers = Handlers()
PRICES = Path(__file__).with_name("prices.json")

handlers.cron(
    "refresh-prices",
    "*/5 * * * *",
    kind="provider-refresh",
    payload={"providers": ["north", "south"]},
    time_zone="Europe/Berlin",
    catch_up="one",  # after an outage run once, not once per missed time
)


@handlers.on("provider-refresh", timeout="1m")
async def refresh(event: Event, ctx: Context) -> dict[str, object]:
    """Read the prices of the schedule's providers. ``scheduled_at`` is the time of this firing."""
    prices = json.loads(PRICES.read_text())
    chosen = {name: prices[name] for name in event.payload["providers"]}
    ctx.log.info("prices read", providers=len(chosen), scheduled_at=event.payload.get("scheduled_at"))
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]
    return {"prices": chosen, "digest": digest}
