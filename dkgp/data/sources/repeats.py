"""Inputs that repeat others, counted as they pass: a model of few prototypes can have no more than different inputs."""

from __future__ import annotations

import hashlib

from dkgp.data.types import FloatArray

__all__ = ["DistinctInputs"]

_MOST_INPUTS = 5000
_MOST_SAMPLES = 1_000_000


class DistinctInputs:
    """Counts the different rows among those shown, up to a few thousand; beyond that nothing need be said."""

    def __init__(self) -> None:
        self.n_samples = 0
        self._seen: set[bytes] | None = set()

    def update(self, rows: FloatArray) -> None:
        """Take in raw inputs, (rows, d)."""
        self.n_samples += len(rows)
        if self._seen is None:
            return
        # Adding 0.0 makes one zero of the two. Piece by piece, since most tables have too many at once.
        for start in range(0, len(rows), _MOST_INPUTS):
            # Digests, since there may be many features.
            self._seen.update(_digest(row) for row in rows[start : start + _MOST_INPUTS] + 0.0)
            if len(self._seen) > _MOST_INPUTS or self.n_samples > _MOST_SAMPLES:
                self._seen = None
                return

    def warnings(self) -> list[str]:
        """One, if at least half of the samples repeat the inputs of another."""
        if self._seen is None or 2 * len(self._seen) > self.n_samples:
            return []
        return [
            f"Only {len(self._seen)} of the {self.n_samples} samples have inputs of their own; the others repeat them. "
            f"A model has no more than {len(self._seen)} prototypes to choose from."
        ]


def _digest(row: FloatArray) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
