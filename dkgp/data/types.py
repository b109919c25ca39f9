"""Type names that the data layer shares, how samples are cut into blocks, and how messages list names."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Public as `dkgp.data.Progress`.
from dkgp.progress import Progress as Progress
from dkgp.progress import ProgressCallback as ProgressCallback

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Json: TypeAlias = dict[str, Any]
Location: TypeAlias = str | os.PathLike[str]

TARGET_BLOCK_ROWS = 8192
LEAST_BLOCKS = 8
LEAST_BLOCK_ROWS = 256
# Rows that compiled loops evaluate at once (`LANES` of the kernels).
VECTOR_ROWS = 16
# One metadata document that is read, or the attributes of one HDF5 file.
MOST_DOCUMENT_BYTES = 16 * 2**20
# One chunk that is read or written, decoded.
MOST_CHUNK_BYTES = 2 * 2**30


@cache
def block_rows(n_samples: int) -> int:
    """Rows of a block of a training set: about 8,192, fewer where there would be less than eight, whole vectors always.

    They depend on n alone, so that results do not depend on who computes them or on how a store is chunked.
    """
    blocks = max(LEAST_BLOCKS, -(-n_samples // TARGET_BLOCK_ROWS))
    rows = max(LEAST_BLOCK_ROWS, -(-n_samples // blocks))
    return -(-rows // VECTOR_ROWS) * VECTOR_ROWS


def quoted(names: Sequence[str]) -> str:
    """A list of names for a message, cut after the twentieth."""
    shown = ", ".join(f"'{name}'" for name in names[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def joined(names: Iterable[str]) -> str:
    """Return names as one text, separated by commas; a name with a comma or a quote stands in double quotes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def split_names(text: str) -> list[str]:
    """Return the names that `joined` made one text of; quotes that are not balanced belong to names."""
    try:
        names = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error:
        names = text.split(",")
    return [name.strip() for name in names if name.strip()]
