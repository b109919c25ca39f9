"""Messages of the search for a cluster, to whoever asked for it."""

from __future__ import annotations

import logging
from typing import Protocol

__all__ = ["Announcer", "LogAnnouncer"]

logger = logging.getLogger("dkgp.cluster")


class Announcer(Protocol):
    """Takes messages; a job's reporter is one."""

    def note(self, message: str) -> None:
        """Say something worth knowing."""

    def warn(self, message: str) -> None:
        """Say something that may need the user's attention."""


class LogAnnouncer:
    """Speaks through Python's logging, for callers that listen to nothing else."""

    def note(self, message: str) -> None:
        """Log at level INFO."""
        logger.info(message)

    def warn(self, message: str) -> None:
        """Log at level WARNING."""
        logger.warning(message)
