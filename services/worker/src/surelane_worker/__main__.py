"""``python -m surelane_worker``: claim events and run handlers, configured by the environment (see ``settings``)."""

import sys

from surelane_service.lifecycle import run
from surelane_worker.wiring import main

if __name__ == "__main__":
    sys.exit(run(main))
