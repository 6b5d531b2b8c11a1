"""``python -m surelane_ingest``: the service that Slack posts to. Configured by the environment; see ``settings``."""

import sys

from surelane_ingest.wiring import main
from surelane_service.lifecycle import run

if __name__ == "__main__":
    sys.exit(run(main))
