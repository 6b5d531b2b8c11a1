"""Run the operator's service: ``python -m surelane_operator``. Environment variables configure it; see ``settings``."""

import sys

from surelane_operator.wiring import main
from surelane_service.lifecycle import run

if __name__ == "__main__":
    sys.exit(run(main))
