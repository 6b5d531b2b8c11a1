"""``surelane doctor``: what is wrong with an installation, and what to do about it.

Every check asks one thing and answers with findings. What the role that is connected may not see is said, not guessed.
"""

from surelane.doctor.examination import examine
from surelane.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
