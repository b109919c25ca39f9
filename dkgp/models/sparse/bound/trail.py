"""The evaluations of a search, written to a file: a resumed search takes the same steps, and looks each of them up.

What a search does next depends only on the outcomes of its evaluations. So a checkpoint needs nothing but these, a few
numbers each, whatever state the optimiser has; they are looked up by their basis and parameters. Where evaluations
iterate, from where the one before ended, it needs that of the last one, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import exists, read_object, remove_object, write_object
from dkgp.errors import CheckpointError
from dkgp.models.sparse.bound.objective import BoundValue
from dkgp.operators.base import FloatArray


class Trail:
    """Outcomes of evaluations by their basis and parameters; None where the evidence does not exist.

    `url` is the file that they are written to; by default there is none. `run` describes data and settings, as JSON
    reads them back. Evaluations stay unwritten for `seconds` at most. `start` is where the next evaluation begins, of
    those that iterate: a column for each latent function.
    """

    start: NDArray[np.float32] | None = None

    def __init__(self, url: str | None = None, run: Mapping[str, Any] | None = None, seconds: float = 30.0) -> None:
        self.url, self._run, self._seconds = url, dict(run or {}), seconds
        self._known: dict[str, list[Any] | None] = {}
        self._written, self._changed = -math.inf, False

    def __len__(self) -> int:
        """Number of evaluations."""
        return len(self._known)

    def load(self) -> bool:
        """Read the evaluations of an earlier run of the same data and settings; False where there is none.

        Raises `CheckpointError`: the file is damaged.
        """
        if self.url is None or not exists(self.url):
            return False
        try:
            document = json.loads(read_object(self.url))
            if document["run"] != self._run:
                return False
            self._known = {
                key: None if record is None else list(record) for key, record in document["evaluations"].items()
            }
            if (start := document.get("start")) is not None:
                values = np.frombuffer(base64.b64decode(start["values"], validate=True), dtype="<f4")
                self.start = values.reshape(-1, start["columns"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"'{self.url}' is no checkpoint of a search, or damaged ({error!r})") from error
        return True

    def save(self) -> None:
        """Write what is not written yet."""
        if self.url is not None and self._changed:
            document: dict[str, Any] = {"run": self._run, "evaluations": self._known}
            if self.start is not None:
                values = base64.b64encode(self.start.astype("<f4").tobytes()).decode()
                document["start"] = {"columns": self.start.shape[1], "values": values}
            write_object(self.url, json.dumps(document, allow_nan=False).encode(), replace=True)
            self._written, self._changed = time.monotonic(), False

    def remove(self) -> None:
        """Remove the file: the search is done."""
        if self.url is not None and exists(self.url):
            remove_object(self.url)

    def find(self, basis: FloatArray, parameters: FloatArray) -> tuple[bool, BoundValue | None]:
        """Look an evaluation up: True and its outcome where it is known."""
        key = _key(basis, parameters)
        record = self._known.get(key)
        outcome = None if record is None else BoundValue(record[0], np.array(record[1]), record[2])
        return key in self._known, outcome

    def add(self, basis: FloatArray, parameters: FloatArray, outcome: BoundValue | None) -> None:
        """Keep an outcome; write all of them every `seconds`."""
        record = None if outcome is None else [outcome.value, outcome.gradient.tolist(), outcome.unexplained]
        self._known[_key(basis, parameters)] = record
        self._changed = True
        if time.monotonic() - self._written >= self._seconds:
            self.save()


def _key(basis: FloatArray, parameters: FloatArray) -> str:
    return hashlib.blake2b(basis.tobytes() + parameters.tobytes(), digest_size=16).hexdigest()
