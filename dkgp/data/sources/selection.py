"""From what a user chooses, names and indices, to the columns of a source: features, targets, weights, test mask.

Weights of labels and known noise of a target take the same place: a column that samples count by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from dkgp.data.sources.base import MISSING_TEXTS, Column, Source, find_columns
from dkgp.data.sources.id_texts import IdTexts
from dkgp.data.sources.label_codes import LabelEncoder
from dkgp.data.stores.columns import ColumnNames
from dkgp.data.types import quoted
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
        """The same with names in the place of indices, which an encoding moves; of a table's columns only."""
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
