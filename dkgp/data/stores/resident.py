"""Values that stay in the memory of one process, and travel as a token that only this process can redeem.

Tasks of an in-process cluster share them; a task that strays to another process says so instead of shipping them.
"""

from __future__ import annotations

import uuid
import weakref
from typing import Any, ClassVar, NoReturn

from dkgp.errors import ClusterError

_RESIDENT: weakref.WeakValueDictionary[str, Resident] = weakref.WeakValueDictionary()


class Resident:
    """Base of arrays in this process's memory; they pickle to a few bytes, and one that strays raises `elsewhere`."""

    elsewhere: ClassVar[str]

    def __reduce__(self) -> tuple[Any, ...]:
        token = self.__dict__.setdefault("_token", uuid.uuid4().hex)
        _RESIDENT[token] = self
        return _redeem, (type(self), token)


def _redeem(kind: type[Resident], token: str) -> Resident | _Elsewhere:
    return _RESIDENT.get(token) or _Elsewhere(kind.elsewhere)


class _Elsewhere:
    # Raised on use: an error already while the message is being read would cost the worker its connection.
    shape = (0,)
    n_samples = n_features = 0
    centre = None

    def __init__(self, message: str) -> None:
        self._message = message

    def read(self, *rows: Any) -> NoReturn:
        raise ClusterError(self._message)

    inputs = rows = read
