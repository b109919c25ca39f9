"""Real numbers from arrays of any type: masked and missing entries become NaN, other values are refused in words.

NumPy turns dates into whole numbers of their unit, drops imaginary parts, and ignores masks, without an error. Values
of users go through `real_numbers` before anything is computed from them.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError, InputTypeError

_DATES = "dates ({}), whose numbers depend on their unit: turn them into numbers of one unit first, such as days by "
_INSTANTS = _DATES + "(t - t0) / np.timedelta64(1, 'D') with a fixed t0, or leave them out"
_DURATIONS = (
    "durations ({}), whose numbers depend on their unit: turn them into numbers of one unit first, such as seconds by "
    "t / np.timedelta64(1, 's'), or leave them out"
)
_COMPLEX = "complex numbers ({}): give their real and imaginary parts as columns of their own"
_RECORDS = "records ({}): give their fields as columns of an array or a DataFrame"
_ENCODE = (
    ". Encode such columns first, as with scikit-learn's OneHotEncoder in a pipeline, or leave them out; `dkgp ingest` "
    "encodes them for the commands"
)
# Messages by the kind of NumPy's dtypes.
_REFUSED = {"M": _INSTANTS, "m": _DURATIONS, "c": _COMPLEX, "V": _RECORDS}


def real_numbers(values: Any, place: str) -> NDArray[Any]:
    """Return values as an array of numbers; masked and missing entries (None, NaN, pandas' NA) are NaN.

    Arrays of numbers of any precision are returned unchanged. Text that spells a number is read.

    Parameters
    ----------
    values : array_like
        A masked array is one.
    place : str
        Name of the values in errors, such as "X".

    Raises
    ------
    InputError
        Dates, durations, complex numbers, records, text, or objects that are no numbers (`InputTypeError`).
    """
    array = array_of(values)
    require_numbers(array.dtype, place)
    if isinstance(array, np.ma.MaskedArray):
        filled = array.data.astype(np.float64 if array.dtype.kind in "biuf" else object)
        filled[np.ma.getmaskarray(array)] = np.nan
        array = filled
    if array.dtype.kind in "OSUT":
        return _of_objects(np.asarray(array).astype(object, copy=False), place)
    return np.asarray(array)


def array_of(values: Any) -> NDArray[Any]:
    """Return values as an array, a masked one where the values or items of a list are masked."""
    if isinstance(values, list | tuple) and any(isinstance(item, np.ma.MaskedArray) for item in values):
        return (
            np.ma.array(values, dtype=object) if any(item is np.ma.masked for item in values) else np.ma.array(values)
        )
    return np.asanyarray(values)


def dense(values: Any, name: str) -> Any:
    """Return a scipy sparse matrix as an array of float64; other values as they are.

    Kernels of sparse rows have no zeros to skip. Transformers such as `OneHotEncoder` return sparse matrices on their
    own account, so that a pipeline has no place to ask for a dense one.

    Raises `InputError`: the array takes more than half of the free memory.
    """
    if not hasattr(values, "tocsr"):
        return values
    require_numbers(values.dtype, name)
    require_room(values.shape, name)
    return values.astype(np.float64).toarray()


def require_room(shape: tuple[int, ...], name: str) -> None:
    """Refuse a sparse matrix that takes more than half of the free memory as an array; `InputError`."""
    import psutil

    free, needed = int(psutil.virtual_memory().available), 8 * int(np.prod(shape, dtype=object))
    if needed > free // 2:
        raise InputError(
            f"{name} is a sparse matrix of shape {shape}; as a dense one it takes {needed / 2**30:.3g} GiB, "
            f"more than half of the {free / 2**30:.3g} GiB of free memory. Select features (SelectKBest), project them "
            "(TruncatedSVD), or write a dataset store by `dkgp ingest` and pass its path"
        )


def lazy_numbers(values: Any, place: str) -> Any:
    """Return a dask array of float64 from another, block by block as by `real_numbers`; nothing is computed."""
    require_numbers(values.dtype, place)
    return values.map_blocks(_of_block, place, dtype=np.float64, meta=np.empty((0,) * values.ndim))


def require_numbers(dtype: Any, place: str) -> None:
    """Refuse a dtype whose values are no real numbers; `InputError`."""
    words = _REFUSED.get(getattr(dtype, "kind", "O"))
    if words is not None:
        raise InputError(_refusal(place, words.format(dtype)))


def _of_block(block: Any, place: str) -> NDArray[np.float64]:
    return np.asarray(real_numbers(block, place), dtype=np.float64)


def _of_objects(array: NDArray[Any], place: str) -> NDArray[Any]:
    """Objects as numbers; the array itself where all of them are numbers."""
    flat = array.ravel().tolist()
    if all(issubclass(kind, int | float | np.floating | np.integer) for kind in set(map(type, flat))):
        return array
    numbers = np.empty(len(flat))
    width = array.shape[1] if array.ndim == 2 else 1
    for position, value in enumerate(flat):
        words = words_on_object(value)
        if words is not None:
            row, column = divmod(position, width)
            if array.ndim == 2:
                place = f"the column {column} of {place}"
            raise InputError(_refusal(place, words.format(type(value).__name__), row))
        if _is_missing(value):
            numbers[position] = np.nan
            continue
        try:
            numbers[position] = float(value)
        except TypeError as error:
            raise InputTypeError(f"{place} holds an object of type {type(value).__name__}: {error}") from error
        except ValueError:
            advice = _ENCODE if place.endswith("X") else "; expected numbers"
            raise InputError(f"{place} holds text where a number belongs, such as {_shown(value)}{advice}") from None
    return numbers.reshape(array.shape)


def words_on_object(value: Any) -> str | None:
    """Words on an object that is of a refused type; None for others."""
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return _DURATIONS
    if isinstance(value, datetime.date | datetime.time | np.datetime64) or type(value).__name__ == "Period":
        return _INSTANTS
    return _COMPLEX if isinstance(value, complex | np.complexfloating) else None


def _is_missing(value: Any) -> bool:
    """True of None, a masked entry, and pandas' NA, which is not imported for the answer."""
    return value is None or value is np.ma.masked or type(value).__name__ == "NAType"


def _refusal(place: str, words: str, row: int | None = None) -> str:
    where = "" if row is None else f" at sample {row}"
    # scikit-learn's words, which its checks look for.
    prefix = "Complex data not supported: " if words.startswith("complex") else ""
    return f"{prefix}{place} holds{where} {words}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}..."
