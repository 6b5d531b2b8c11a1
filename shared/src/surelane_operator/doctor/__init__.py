"""``surelane doctor``: find what is wrong with an installation, and say what to do.

Each check asks one thing and returns findings. A check that the connected role may not run is reported as unknown.
"""

from surelane_operator.doctor.examination import examine, examine_at
from surelane_operator.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine", "examine_at"]
