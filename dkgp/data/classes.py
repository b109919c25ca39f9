"""Names of classes: the name of each label, valid names, and codes of one naming in another.

A class is known by its name wherever data sets meet: the codes 0, 1, ..., C - 1 that stand for the labels in a store
follow the order of that store's names alone.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray, IntArray, quoted
from dkgp.errors import InputError

# One decision function for each, or that many probabilities for each sample; more is a number to predict, or a key.
MOST_CLASSES = 1000
_LONGEST_NAME = 200
# Up to here float64 tells every whole number from its neighbours.
_EXACT = 2.0**53


def class_name(label: object) -> str:
    """The name of a label's class.

    Text without blanks around it, in Unicode's composed form (NFC); "False" and "True"; a whole number without ".0";
    any other number by the shortest digits that give it back. `InputError` for an empty value,
    NaN, infinity, or a value that is neither text nor a number.
    """
    if isinstance(label, bytes):
        try:
            label = label.decode()
        except UnicodeDecodeError:
            raise InputError(f"the label {label!r} is not UTF-8 text; write it as text first") from None
    if isinstance(label, str):
        return _text_name(label)
    if isinstance(label, bool | np.bool_):
        return str(bool(label))
    if isinstance(label, int | np.integer):
        return str(int(label))
    try:
        number = float(label)  # type: ignore[arg-type]  # decimals too
    except (TypeError, ValueError):
        raise InputError(
            f"a label is of type {type(label).__name__}, {str(label)[:40]!r}; expected text or a number"
        ) from None
    if not math.isfinite(number):
        raise InputError("a label is missing or NaN" if math.isnan(number) else "a label is infinite")
    if isinstance(label, Decimal) and label == label.to_integral_value():
        return str(int(label))
    return str(int(number)) if number == int(number) and abs(number) <= _EXACT else repr(number)


def _text_name(text: str) -> str:
    name = unicodedata.normalize("NFC", text.strip())
    if not name:
        raise InputError("a label is missing (empty text)")
    if len(name) > _LONGEST_NAME:
        raise InputError(f"a label has {len(name)} characters, '{name[:40]}...'; expected at most {_LONGEST_NAME}")
    # Control characters and halves of surrogate pairs; blanks within a name are fine.
    if odd := [mark for mark in name if unicodedata.category(mark) in ("Cc", "Cs")]:
        raise InputError(f"the label {name[:40]!r} holds the control character {odd[0]!r}; rename that class")
    if "\ufffd" in name:
        raise InputError(
            f"the label '{name[:40]}' was not written in UTF-8; name the file's `encoding`, or convert the text (iconv)"
        )
    return name


def check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Class names as a tuple; `InputError` where there are fewer than two, too many, or two of the same name."""
    names = tuple(map(str, classes))
    if len(names) < 2:
        raise InputError(
            f"There is one class only, {quoted(names)}; expected at least two classes to tell apart."
            if names
            else "There is no class; expected the names of at least two."
        )
    if len(names) > MOST_CLASSES:
        raise InputError(f"There are {len(names)} classes; expected at most {MOST_CLASSES}.")
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"The class name '{repeated}' occurs {names.count(repeated)} times; names must differ.")
    return names


def codes_of_numbers(values: FloatArray, classes: Sequence[str], where: str) -> IntArray:
    """Codes of labels that are numbers, (n,), by the names of the numbers; `InputError` names a class that is new."""
    distinct, inverse = np.unique(values, return_inverse=True)
    known = {name: code for code, name in enumerate(classes)}
    names = [class_name(value) for value in distinct.tolist()]
    unseen = [name for name in names if name not in known]
    if unseen:
        raise unseen_error(unseen, classes, where)
    return np.array([known[name] for name in names], dtype=np.int64)[inverse.reshape(-1)]


def codes_of_targets(targets: FloatArray, n_classes: int, where: str) -> IntArray:
    """Integer codes (n,) of a store's targets; `InputError` for a value that is no code of these classes."""
    codes = np.rint(targets)
    odd = (codes != targets) | (codes < 0) | (codes >= n_classes)
    if odd.any():
        row = int(np.argmax(odd))
        raise InputError(
            f"The label in row {row} of {where} is {targets[row]:g}; expected a class's number, 0 to {n_classes - 1}."
        )
    return codes.astype(np.int64)


def signs_of(codes: IntArray, n_classes: int) -> FloatArray:
    """Signs that decision functions are fitted to, (n, t): +1 for the class, -1 for the others.

    One column for two classes, +1 for the second; else one for each class.
    """
    if n_classes == 2:
        return np.where(codes == 1, 1.0, -1.0)[:, None]
    return np.where(codes[:, None] == np.arange(n_classes), 1.0, -1.0)


def code_map(stored: Sequence[str], classes: Sequence[str], counts: Sequence[int] | None, where: str) -> IntArray:
    """The code among `classes` of each stored class, (stored classes,); -1 for one that has no sample.

    `counts` are the samples of each stored class, None where they are not known. `InputError` names a class that has
    samples (or may have) and is not among `classes`.
    """
    known = {name: code for code, name in enumerate(classes)}
    unseen = [name for index, name in enumerate(stored) if name not in known and (counts is None or counts[index] > 0)]
    if unseen:
        raise unseen_error(unseen, classes, where)
    return np.array([known.get(name, -1) for name in stored], dtype=np.int64)


def unseen_error(unseen: Sequence[str], classes: Sequence[str], where: str) -> InputError:
    """Return the error for classes that are not in the training set."""
    plural = "es" if len(unseen) > 1 else ""
    return InputError(
        f"{where} holds the class{plural} {quoted(unseen)}, which the training set has not; its classes are "
        f"{quoted(classes)}. Leave those samples out, or train with samples of every class."
    )


def plain_names(classes: Any) -> tuple[str, ...] | None:
    """Class names as a manifest has them; None where it has none (no labels, or a store of an older format)."""
    return None if classes is None else tuple(map(str, classes))
