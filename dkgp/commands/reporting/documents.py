"""Documents: what a job returns, in plain JSON types."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from dkgp.data.remote.storage import read_object

Document: TypeAlias = dict[str, Any]


def plain(value: Any) -> Any:
    """Return the value in plain JSON types; what JSON has no word for (NaN, infinities) becomes None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__name__} cannot stand in a document")


def is_document(path: str | os.PathLike[str], command: str) -> bool:
    """True if a file holds a document of that command."""
    try:
        return bool(json.loads(read_object(path))["command"] == command)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def dump(document: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return the document as JSON text that every parser accepts."""
    return json.dumps(plain(document), indent=indent, allow_nan=False)
