"""Labels as they stand in a source, to codes of classes: named and put in order once all of them are seen.

The first pass over a source numbers labels as they come; when it is over, `LabelEncoder.settle` knows the classes, and
the second pass gets their codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.classes import MOST_CLASSES, check_classes, class_name, unseen_error
from dkgp.data.sources.split import check_classes_split, stratified_mask
from dkgp.data.types import BoolArray, FloatArray, IntArray, quoted
from dkgp.errors import InputError

# Of more labels than may be, those that are shown.
_SHOWN = 3
# The folds of a cross-validation where nothing else is said.
_FOLDS = 10


@dataclass(frozen=True)
class _Label:
    """A label of a source: its class's name, its number if it is one, and `untyped` where text may be a number."""

    name: str
    number: float | int | None
    untyped: bool = False


class LabelEncoder:
    """Turns the values of a column of labels into codes; hand it to the source with the column (`Column.encode`).

    Text from a file that tells no types (CSV) stands for numbers if all of the labels do; text from others is text.
    Missing values (NaN, empty text) come back as NaN, infinities as themselves, for the caller to refuse.

    From `settle` on it has the names of the `classes` in order, numbers as numbers, all else as text, and all the
    `warnings` that the user should see.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows_seen = 0
        self.classes: tuple[str, ...] = ()
        self.warnings: list[str] = []
        self._known: dict[Hashable, int] = {}
        self._labels: list[_Label] = []
        self._final: IntArray | None = None

    def __call__(self, values: NDArray[Any], place: Callable[[int], str], untyped: bool = False) -> FloatArray:
        """Codes of the next rows, (rows,): as they come before `settle`, those of `classes` after it.

        `InputError`, which names the place, for what can be no label, or more different ones than `MOST_CLASSES`.
        """
        values = np.asarray(values)
        if values.dtype.kind in "biuf":
            distinct, inverse = np.unique(values, return_inverse=True)
            firsts = np.unique(inverse, return_index=True)[1]
            numbered = [self._code(value, place, int(row)) for value, row in zip(distinct, firsts, strict=True)]
            codes = np.array(numbered, dtype=np.float64)[inverse.reshape(-1)] if len(values) else np.empty(0)
        elif values.dtype.kind in "USOT":
            kind = "text" if untyped else "typed"
            entries = values.astype(object).tolist()
            try:
                numbered = [self._known.get((kind, entry.__class__, entry), -1) for entry in entries]
            except TypeError as error:  # lists and the like
                raise InputError(
                    f"The labels '{self.name}' are neither text nor numbers ({error}; from {place(0)} on)."
                ) from error
            for row, number in enumerate(numbered):
                if number < 0:
                    numbered[row] = self._code(entries[row], place, row, untyped)
            codes = np.array(numbered, dtype=np.float64)
        else:
            raise InputError(
                f"The labels '{self.name}' are of type {values.dtype} ({place(0)}); expected text or numbers."
            )
        self.rows_seen += len(values)
        if self._final is not None:
            if not np.isfinite(codes).all():
                raise InputError(f"The labels '{self.name}' changed while they were read; ingest them again.")
            codes = self._final[codes.astype(np.int64)].astype(np.float64)
        return codes

    def settle(self, known: Sequence[str] = ()) -> IntArray:
        """Name and order the classes; return the code of its class for each number given so far.

        Labels of one class are tests for the `known` classes of a training set. `InputError` where there is one class
        only and none is known, or an infinite label.
        """
        labels = self._resolved()
        names = dict.fromkeys(label.name for label in labels)
        numbers = {label.name: label.number for label in labels if label.number is not None}
        ordered = sorted(names, key=numbers.__getitem__) if len(numbers) == len(names) else sorted(names)
        if len(ordered) == 1 and known:
            if ordered[0] not in known:
                raise unseen_error(ordered, known, f"The column '{self.name}'")
            ordered = list(known)
        if len(ordered) == 1:
            raise InputError(
                f"The labels '{self.name}' are one class only: all {self.rows_seen} samples are '{ordered[0]}'. There "
                "is nothing to tell apart; choose another column, or add samples of other classes. Samples to evaluate "
                "a model on are read with `like`, which names the model."
            )
        self.classes = check_classes(ordered)
        position = {name: code for code, name in enumerate(ordered)}
        self._final = np.array([position[label.name] for label in labels], dtype=np.int64)
        return self._final

    def _code(self, value: Any, place: Callable[[int], str], row: int, untyped: bool = False) -> float:
        """The number of a label, a new one where it is the first of its kind; NaN for a missing one."""
        value = value.item() if isinstance(value, np.generic) else value
        if value is None or (isinstance(value, str | bytes) and not value.strip()):
            return math.nan
        if not isinstance(value, str | bytes | bool | int):
            number = _number(value)
            if number is not None and not math.isfinite(number):
                return number
        key = ("text" if untyped else "typed", value.__class__, value)
        code = self._known.get(key)
        if code is not None:
            return code
        if self._final is not None:
            raise InputError(f"The label {value!r} in {place(row)} was not there a moment ago; ingest it again.")
        try:
            name = class_name(value)
        except InputError as error:
            raise InputError(f"The labels '{self.name}': {error} ({place(row)}).") from None
        if len(self._labels) >= MOST_CLASSES:
            shown = quoted([label.name for label in self._labels[:_SHOWN]])
            raise InputError(
                f"The labels '{self.name}' hold more than {MOST_CLASSES} different values, {shown} and so on (up to "
                f"{place(row)}); expected at most {MOST_CLASSES} classes. A number to predict is a `target`."
            )
        number = None if isinstance(value, str | bytes | bool) else _number(value)
        exact = value if isinstance(value, int) and not isinstance(value, bool) else number
        self._labels.append(_Label(name, exact, untyped))
        self._known[key] = len(self._labels) - 1
        return self._known[key]

    def _resolved(self) -> list[_Label]:
        """The labels with untyped text taken as numbers where all of it is."""
        texts = [label for label in self._labels if label.untyped]
        numbers = [_parsed(label.name) for label in texts]
        if any(number is None for number in numbers):
            return self._labels
        for label, number in zip(texts, numbers, strict=True):
            if number is not None and not math.isfinite(number):
                raise InputError(
                    f"The labels '{self.name}' are numbers, but one is '{label.name}'; expected finite ones, or text."
                )
        known = {label.name: number for label, number in zip(texts, numbers, strict=True)}
        same: dict[str, list[str]] = {}
        for text, number in known.items():
            same.setdefault(class_name(number), []).append(text)
        for name, spelled in same.items():
            if len(spelled) > 1:
                self.warnings.append(
                    f"The labels {quoted(spelled)} of '{self.name}' are the same number, and one class, '{name}'."
                )
        return [
            _Label(class_name(known[label.name]), known[label.name]) if label.untyped else label
            for label in self._labels
        ]


@dataclass(frozen=True)
class SettledLabels:
    """The labels of all samples of a source, after the first pass.

    `codes` (n,) are those of `classes`; `warnings` are what the user should see already.
    """

    codes: NDArray[np.integer[Any]]
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def stratified(self, n_samples: int, test_fraction: float, seed: int) -> BoolArray:
        """A random test mask, (n,), that takes the same share of every class; as `stratified_mask`."""
        return stratified_mask(self.codes[:n_samples], self.classes, test_fraction, seed)

    def check(self, mask: BoolArray | None) -> list[str]:
        """Look at the classes of the training samples; return what the user should hear of.

        Raises `InputError` where the test samples of the mask are all that there is of a class.
        """
        codes = self.codes
        if mask is not None:
            check_classes_split(mask, codes, self.classes)
            codes = codes[~mask]
        counts = np.bincount(codes, minlength=len(self.classes)).tolist()
        rare = [f"'{name}' ({count})" for name, count in zip(self.classes, counts, strict=True) if count < _FOLDS]
        if not rare:
            return [*self.warnings]
        more = f" and {len(rare) - 10} more" if len(rare) > 10 else ""
        return [
            *self.warnings,
            f"Classes of fewer than {_FOLDS} training samples: {', '.join(rare[:10])}{more}. Cross-validation takes no "
            "more folds than the rarest class has samples.",
        ]


def settled_labels(
    encoder: LabelEncoder, blocks: Sequence[NDArray[np.int16]], known: Sequence[str] = ()
) -> SettledLabels:
    """Return the labels of a source from the codes of its blocks in the first pass, as `LabelEncoder.settle` does."""
    final = encoder.settle(known)
    return SettledLabels(final.astype(np.int16)[np.concatenate(blocks)], encoder.classes, tuple(encoder.warnings))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _parsed(text: str) -> float | int | None:
    """The number that a text is, whole ones exactly; None for any other text."""
    digits = text.removeprefix("-").removeprefix("+")
    if digits.isascii() and digits.isdigit():
        return int(text)
    return None if "_" in text or not text.isascii() else _number(text)
