"""``surelane doctor``: what is wrong with an installation, and what to do about it.

Every check asks one thing and answers with findings. What the role that is connected may not see is said, not guessed.
"""

from surelane_operator.doctor.examination import examine
from surelane_operator.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
