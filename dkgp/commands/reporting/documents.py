"""Documents: what a job returns, in plain JSON types."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from dkgp.codec import finite, to_json
from dkgp.data.remote.storage import read_object

Document: TypeAlias = dict[str, Any]


def plain(value: Any) -> Any:
    """Return the value in plain JSON types; what JSON has no word for (NaN, infinities) becomes None."""
    return finite(to_json(value))


def is_document(path: str | os.PathLike[str], command: str) -> bool:
    """True if a file holds a document of that command."""
    try:
        return bool(json.loads(read_object(path))["command"] == command)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def dump(document: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return the document as JSON text that every parser accepts."""
    return json.dumps(plain(document), indent=indent, allow_nan=False)
