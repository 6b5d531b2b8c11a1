"""Run ingest: ``python -m surelane_ingest``. Environment variables configure it; see ``settings``."""

import sys

from surelane_ingest.wiring import main
from surelane_service.lifecycle import run

if __name__ == "__main__":
    sys.exit(run(main))
