"""Texts that identify samples, as bytes of UTF-8 beside the samples: columns side by side, padded with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError


def text_bytes(texts: NDArray[np.object_], columns: Sequence[tuple[str, int]]) -> NDArray[np.uint8]:
    """Texts (rows, columns) as bytes (rows, total width); `columns` are names and widths.

    `InputError` for another number of columns, or a text that is longer than its column.
    """
    if texts.ndim != 2 or texts.shape[1] != len(columns):
        raise InputError(f"The ids have shape {texts.shape}; expected (rows, {len(columns)}).")
    parts = [np.empty((len(texts), 0), dtype=np.uint8)]
    for position, (name, width) in enumerate(columns):
        encoded = [str(text).encode() for text in texts[:, position]]
        longest = max(map(len, encoded), default=0)
        if longest > width:
            raise InputError(f"An id of '{name}' takes {longest} bytes; its column has {width}.")
        parts.append(np.array(encoded, dtype=f"S{width}").view(np.uint8).reshape(len(texts), width))
    return np.concatenate(parts, axis=1)


def texts_of_bytes(rows: NDArray[np.uint8], widths: Sequence[int]) -> NDArray[np.object_]:
    """The texts (rows, columns) that `text_bytes` made bytes of."""
    texts = np.empty((len(rows), len(widths)), dtype=object)
    start = 0
    for position, width in enumerate(widths):
        column = np.ascontiguousarray(rows[:, start : start + width]).view(f"S{width}").reshape(len(rows))
        texts[:, position] = [text.decode() for text in column.tolist()]
        start += width
    return texts
