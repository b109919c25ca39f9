"""The columns of a source that a user chooses, by name or index, and the roles in which they are read.

Roles are features, targets or labels, ids, a test mask, and one column by which samples count: weights of labels, or
known noise of a target. Test samples are drawn at random, with or without equal shares of every class, or named by the
mask. Labels become codes of classes: the first pass over a source numbers labels as they come, `LabelEncoder.settle`
then knows the classes, and the second pass gets their codes. Texts of ids are numbered while the source is read, block
by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.classes import MOST_CLASSES, check_classes, class_name, unseen_error
from dkgp.data.sources.base import MISSING_TEXTS, OTHER_KINDS, Column, Source, find_columns
from dkgp.data.sources.tables.encoding import Places, gaps, texts_of
from dkgp.data.stores.dataset import ColumnNames
from dkgp.data.stores.dataset_writer import MINIMUM_TRAINING_SAMPLES
from dkgp.data.types import BoolArray, FloatArray, IntArray, quoted
from dkgp.errors import InputError, UsageError

Selector: TypeAlias = str | int


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that a user chose, by name or index (see `ingest`); by default all are features."""

    target: Selector | Sequence[Selector] | None = None
    labels: Selector | None = None
    weights: Selector | None = None
    features: Sequence[Selector] | None = None
    ids: Sequence[Selector] = ()
    noise: Selector | None = None
    noise_std: Selector | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.target is not None and self.target != []:
            raise UsageError("Got both a target and labels; a column of labels is given as `labels` alone.")
        if self.weights is not None and self.labels is None:
            raise UsageError("Got `weights` without `labels`; a regression takes all samples alike. Leave them out.")
        if self.noise is not None and self.noise_std is not None:
            raise UsageError("Got `noise_column` and `noise_std_column`; noise is told once. Leave one of them out.")
        if self.by_noise is not None and len(_listed(self.target)) != 1:
            raise UsageError(
                f"Got a column of known noise and {len(_listed(self.target)) or 'no'} `targets`; noise is that of one "
                "target, in whose units it is. Leave it out, or name one target."
            )

    @property
    def by_noise(self) -> Selector | None:
        """The column of known noise, variances or standard deviations."""
        return self.noise if self.noise_std is None else self.noise_std

    @property
    def counting(self) -> tuple[Selector | None, str]:
        """The column that samples count by, and its role."""
        return (self.weights, "column of weights") if self.by_noise is None else (self.by_noise, "column of noise")

    def by_name(self, source: Source) -> ColumnChoice:
        """Return this choice with names in place of indices, which an encoding moves; for columns of tables only."""
        names = set(source.by_name) | set(source.groups)

        def named(selector: Selector) -> Selector:
            if isinstance(selector, str) and (selector in names or not selector.removeprefix("-").isdecimal()):
                return selector
            (column,) = find_columns(source, selector, "column")
            return column.name

        return ColumnChoice(
            None if self.target is None else [named(selector) for selector in _listed(self.target)],
            None if self.labels is None else named(self.labels),
            None if self.weights is None else named(self.weights),
            None if self.features is None else [named(selector) for selector in _listed(self.features)],
            [named(selector) for selector in _listed(self.ids)],
            None if self.noise is None else named(self.noise),
            None if self.noise_std is None else named(self.noise_std),
        )

    def aside(self, source: Source, mask: str | None) -> tuple[Column, ...]:
        """The chosen columns that are no features: targets or labels, weights or noise, and the test mask."""
        roles: list[tuple[Selector | None, str]] = [(selector, "target") for selector in _listed(self.target)]
        roles += [(self.labels, "column of labels"), self.counting, (mask, "test mask")]
        return tuple(
            column
            for selector, role in roles
            if selector is not None
            for column in find_columns(source, selector, role)
        )

    def identifying(self, source: Source) -> tuple[Column, ...]:
        """The chosen columns that identify samples."""
        return tuple(column for each in _listed(self.ids) for column in find_columns(source, each, "id"))

    def columns(self, source: Source) -> tuple[Column, ...]:
        """The chosen features; empty where none are chosen."""
        return tuple(column for each in _listed(self.features) for column in find_columns(source, each, "feature"))


def _listed(selectors: Selector | Sequence[Selector] | None) -> list[Selector]:
    return [] if selectors is None else [selectors] if isinstance(selectors, str | int) else list(selectors)


@dataclass(frozen=True)
class Selection:
    """The columns of a source that are read, in this order; `encoder` makes codes of the one target of labels.

    `weights`: the column that samples count by, of weights or, where `noise` says which, of variances or deviations.
    """

    features: tuple[Column, ...]
    targets: tuple[Column, ...]
    weights: tuple[Column, ...]
    mask: Column | None
    encoder: LabelEncoder | None = None
    # With their texts, as `IdTexts` in their `encode`.
    ids: tuple[Column, ...] = ()
    noise: Literal["variances", "deviations"] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of them."""
        return (*self.features, *self.targets, *self.weights, *self.ids, *([self.mask] if self.mask else []))

    @property
    def id_texts(self) -> tuple[IdTexts, ...]:
        """The keepers of the texts of `ids`."""
        return tuple(column.encode for column in self.ids if isinstance(column.encode, IdTexts))


def select_columns(source: Source, choice: ColumnChoice, mask: str | None) -> Selection:
    """Find the chosen columns and that of the test mask, which is no feature.

    Raises `InputError` where a column is not there, is chosen twice, or none is left for the features.
    """
    features, labelled = choice.features, choice.labels is not None
    weights, counting = choice.counting
    target = choice.labels if labelled else choice.target
    selectors = [] if target is None else [target] if isinstance(target, str | int) else list(target)
    role = "column of labels" if labelled else "target"
    targets = tuple(column for selector in selectors for column in find_columns(source, selector, role))
    if labelled and len(targets) != 1:
        raise InputError(
            f"The labels '{selectors[0]}' have {len(targets)} columns; choose one, as in '{selectors[0]}:0'."
        )
    mask_columns = find_columns(source, mask, "test mask") if mask is not None else ()
    weighing = find_columns(source, weights, counting) if weights is not None else ()
    if len(weighing) > 1 or set(weighing) & {*targets, *mask_columns}:
        what = "weights" if choice.by_noise is None else "noise variances or deviations"
        other = "labels" if labelled else "the target"
        raise InputError(
            f"The {what} '{weights}' are {len(weighing)} columns, or {other} or test mask; choose another."
        )
    if len(mask_columns) > 1:
        raise InputError(f"The test mask '{mask}' has {len(mask_columns)} columns; choose one, as in '{mask}:0'.")
    identifying = choice.identifying(source)
    others = {*targets, *weighing, *mask_columns}
    taken = [column.name for column in identifying if column in others]
    if taken or len(set(identifying)) < len(identifying):
        role = (
            f"The id '{taken[0]}' is a target, labels, weights, noise or test mask, too"
            if taken
            else "An id is named twice"
        )
        raise InputError(f"{role}; a column has one role.")
    if features is not None:
        feature_selectors = [features] if isinstance(features, str | int) else list(features)
        feature_columns = tuple(
            column for selector in feature_selectors for column in find_columns(source, selector, "feature")
        )
        others = {*targets, *weighing, *identifying}
        both = [column.name for column in feature_columns if column in others]
        if both:
            roles = {column.name: "id" for column in identifying} | {column.name: "target" for column in targets}
            role = roles.get(both[0], counting)
            raise InputError(f"The {role} '{both[0]}' is among the features; leave it out of them.")
    else:
        # A mask that is one column of several takes the whole array with it: the other splits are no features either.
        masked = {column.array for column in mask_columns if column.array} if source.groups else set()
        aside = {*targets, *weighing, *mask_columns, *identifying}
        feature_columns = tuple(
            column for column in source.positional if column not in aside and column.array not in masked
        )
    if not feature_columns:
        raise InputError(
            f"'{source.url}' has no column left for the features; it has "
            f"{quoted([column.name for column in source.columns])}."
        )
    ColumnNames.checked([column.name for column in feature_columns], [column.name for column in targets])
    encoder = LabelEncoder(targets[0].name) if labelled else None
    encoded = tuple(replace(column, encode=encoder) for column in targets) if labelled else targets
    # An id is text as it stands, also where it reads like a missing value.
    ids = tuple(replace(column, encode=IdTexts(column.name), not_missing=MISSING_TEXTS) for column in identifying)
    mask_column = mask_columns[0] if mask_columns else None
    noise: Literal["variances", "deviations"] | None = None
    if choice.by_noise is not None:
        noise = "variances" if choice.noise_std is None else "deviations"
    return Selection(feature_columns, encoded, weighing, mask_column, encoder, ids, noise)


# Of n samples, a fraction and a seed.
Draw: TypeAlias = Callable[[int, float, int], BoolArray]


@dataclass(frozen=True)
class Split:
    """The test samples to split off: a share drawn at random, or those of a mask, a column's name or an array.

    `stratify` says that the draw takes the same share of every class; by default it does where there are labels.
    """

    fraction: float | None = None
    marked: str | NDArray[np.bool_] | None = None
    stratify: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fraction is not None and self.marked is not None:
            raise UsageError("Got both a test fraction and a test mask; give one of them.")

    def __bool__(self) -> bool:
        return self.fraction is not None or self.marked is not None

    @property
    def column(self) -> str | None:
        """The column that holds the mask, if one does."""
        return self.marked if isinstance(self.marked, str) else None

    def mask(self, n_samples: int, column: BoolArray | None, stratified: Draw | None) -> BoolArray | None:
        """The mask of the test samples, (n,); None where there is no split.

        `column` is the mask that the source holds; `stratified` draws by classes, where there are labels. `InputError`
        where there are too few samples for the split, or a mask does not fit them.
        """
        if self.fraction is not None:
            draw = random_mask if stratified is None or self.stratify is False else stratified
            mask = draw(n_samples, self.fraction, self.seed)
        elif self.column is not None:
            assert column is not None
            mask = column
        elif self.marked is not None:
            values = np.asarray(self.marked)
            if values.shape != (n_samples,):
                raise InputError(f"The test mask has shape {values.shape}; expected ({n_samples},).")
            mask = mask_from_column(values.astype(np.float64), "test_mask")
        else:
            return None
        check_split(mask)
        return mask


def random_mask(n_samples: int, test_fraction: float, seed: int) -> BoolArray:
    """A random test mask, shape (n,), with round(n test_fraction) test samples, but at least one.

    It depends on n, the fraction and the seed alone, not on how the samples are read or stored.
    """
    _check_draw(test_fraction, seed)
    n_test = max(1, round(n_samples * test_fraction))
    mask = np.zeros(n_samples, dtype=bool)
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(3, 0)))
    if n_test < n_samples:
        mask[generator.choice(n_samples, n_test, replace=False, shuffle=False)] = True
    else:
        mask[:] = True
    return mask


def stratified_mask(
    codes: NDArray[np.integer[Any]], classes: Sequence[str], test_fraction: float, seed: int
) -> BoolArray:
    """A random test mask, shape (n,), that takes the same share of every class.

    Of round(n test_fraction) test samples each class has its share, rounded down; those left over go to the largest
    remainders. Every class that has samples keeps at least one for training. The mask depends on the labels, the
    fraction and the seed alone.

    Raises `InputError` where every class has a single sample.
    """
    _check_draw(test_fraction, seed)
    counts = np.bincount(codes, minlength=len(classes))
    most = np.maximum(counts - 1, 0)
    total_test = min(max(1, round(len(codes) * test_fraction)), int(most.sum()))
    if total_test < 1:
        raise InputError(
            f"Each of the {int((counts > 0).sum())} classes has one sample only; none can be split off for testing."
        )
    exact = counts * test_fraction
    n_test = np.minimum(np.floor(exact).astype(np.int64), most)
    by_remainder = np.argsort(-(exact - np.floor(exact)), kind="stable")
    # Rounds, as after the first some classes may have no more to give.
    while (missing := total_test - int(n_test.sum())) > 0:
        n_test[by_remainder[n_test[by_remainder] < most[by_remainder]][:missing]] += 1
    mask = np.zeros(len(codes), dtype=bool)
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(3, 1)))
    for code, count in enumerate(n_test):
        mask[generator.permutation(np.flatnonzero(codes == code))[:count]] = True
    return mask


def check_classes_split(mask: BoolArray, codes: NDArray[np.integer[Any]], classes: Sequence[str]) -> None:
    """`InputError` where a mask leaves a class without a training sample."""
    counts = np.bincount(codes[~mask], minlength=len(classes))
    unseen = [name for name, count in zip(classes, counts, strict=True) if not count]
    if unseen:
        raise InputError(
            f"All samples of the class{'es' if len(unseen) > 1 else ''} {quoted(unseen)} are test samples, so that "
            "nothing could be learned of it. Choose another split, or leave them out."
        )


def _check_draw(test_fraction: float, seed: int) -> None:
    if not 0 < test_fraction < 1:
        raise InputError(f"The test fraction must lie between 0 and 1, both excluded; got {test_fraction}.")
    if seed < 0:
        raise InputError(f"The seed must not be negative; got {seed}.")


def mask_from_column(values: FloatArray, name: str) -> BoolArray:
    """A test mask from a column of zeros and ones, shape (rows,). `InputError` for any other value."""
    odd = (values != 0) & (values != 1)
    if odd.any():
        raise InputError(
            f"The test mask '{name}' holds the value {values[odd][0]}; expected 0 or False for training samples and "
            "1 or True for test samples."
        )
    return np.asarray(values == 1)


def check_split(mask: BoolArray) -> None:
    """`InputError` where a mask leaves too few training samples, or no test sample."""
    n_test = int(mask.sum())
    n_train = mask.size - n_test
    if n_train < MINIMUM_TRAINING_SAMPLES or n_test < 1:
        raise InputError(
            f"The split of {mask.size} samples leaves {n_train} for training and {n_test} for testing; at least "
            f"{MINIMUM_TRAINING_SAMPLES} and 1 are needed."
        )


# Most bytes of UTF-8 of an id. Longer texts hardly identify a sample, and would be stored for every sample.
MOST_BYTES = 1024


class IdTexts:
    """Numbers the values of a column and keeps their texts until they are taken; `__call__` is a `Column.encode`.

    Every row has a text: a gap is an empty one. Text of a CSV is stripped of blanks; a number becomes a whole number
    without ".0", else the shortest digits that give it back.

    Attributes
    ----------
    width
        Bytes of UTF-8 that the longest of all texts so far takes, at least 1.
    rows_seen
        Rows so far.
    """

    def __init__(self, name: str) -> None:
        self.name, self.width, self.rows_seen = name, 1, 0
        self._texts: list[str] = []
        self._first = 0

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """Numbers (rows,) of the next rows; `InputError` for a text of more than `MOST_BYTES` bytes."""
        values = np.asarray(values)
        empty = gaps(values)
        if values.dtype.kind in OTHER_KINDS:
            values = texts_of(values)
        for row, value in enumerate(values.tolist()):
            text = "" if empty[row] else _text(value)
            size = len(text.encode())
            if size > MOST_BYTES:
                raise InputError(
                    f"The id '{self.name}' takes {size:,} bytes in {place(row)}; expected at most {MOST_BYTES:,}. Drop "
                    "the column, or choose one that identifies samples by less."
                )
            self.width = max(self.width, size)
            self._texts.append(text)
        numbers = np.arange(self.rows_seen, self.rows_seen + len(values), dtype=np.float64)
        self.rows_seen += len(values)
        return numbers

    def take(self, numbers: FloatArray) -> NDArray[np.object_]:
        """The texts (rows,) of increasing numbers; they and all before them are forgotten."""
        rows = numbers.astype(np.int64) - self._first
        texts = np.array([self._texts[row] for row in rows], dtype=object)
        if len(rows):
            del self._texts[: rows[-1] + 1]
            self._first += int(rows[-1]) + 1
        return texts


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    # A zero would end the text where it is stored.
    return str(value).strip().rstrip("\0")


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

        `InputError`, which names the place, for a value that can be no label, or more classes than `MOST_CLASSES`.
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
                "is nothing to tell apart; choose another column, or add samples of other classes."
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

    `codes` (n,) are those of `classes`; `warnings` are for the user.
    """

    codes: NDArray[np.integer[Any]]
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def stratified(self, n_samples: int, test_fraction: float, seed: int) -> BoolArray:
        """A random test mask, (n,), that takes the same share of every class; as `stratified_mask`."""
        return stratified_mask(self.codes[:n_samples], self.classes, test_fraction, seed)

    def check(self, mask: BoolArray | None) -> list[str]:
        """Check the classes of the training samples; return warnings for the user.

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
