"""A client's patience: pauses that grow, up to a deadline.

Not tenacity: its deadline counts from the first attempt and belongs to one call, while here it counts from the first
failure since anything went well, in the middle of a stream too. The wait, stop and note that it would have to be given
for that are the dozen lines of `after_failure`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from dkgp.errors import DkgpError

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class Patience:
    """Counts failures that may pass by themselves, for so many seconds from the first, which `tell` is told of."""

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self.failures = 0
        self._seconds, self._tell = seconds, tell
        self._since = 0.0

    def reset(self) -> None:
        """Begin anew: something went well."""
        self.failures = 0

    def after_failure(self, error: DkgpError, wanted_pause: float | None = None) -> None:
        """Pause, as long at least as the other side asked for; raise the error where the deadline has passed.

        An error whose attribute `transient` is false is raised at once.
        """
        now = time.monotonic()
        if not self.failures:
            self._since = now
        remaining = self._since + self._seconds - now
        if remaining <= 0 or not getattr(error, "transient", True):
            raise error
        if not self.failures:
            self._tell(f"{error}; trying again for {self._seconds:.0f} s")
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures, 16), LONGEST_PAUSE_SECONDS)
        # Spread, so that many clients of one service that comes back do not all come back at once.
        pause *= random.uniform(0.5, 1.0)
        self.failures += 1
        time.sleep(min(max(pause, wanted_pause or 0.0), remaining))
