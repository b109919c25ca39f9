"""From what a user chooses, names and indices, to the columns of a source: features, targets, weights, test mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from dkgp.data.sources.base import Column, Source, find_columns
from dkgp.data.sources.label_codes import LabelEncoder
from dkgp.data.stores.dataset_writer import check_names
from dkgp.data.types import quoted
from dkgp.errors import InputError

__all__ = ["Selection", "Selector", "select_columns"]

Selector: TypeAlias = str | int


@dataclass(frozen=True)
class Selection:
    """The columns of a source that are read, in this order; `encoder` makes codes of the one target of labels."""

    features: tuple[Column, ...]
    targets: tuple[Column, ...]
    weights: tuple[Column, ...]
    mask: Column | None
    encoder: LabelEncoder | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of them."""
        return (*self.features, *self.targets, *self.weights, *([self.mask] if self.mask else []))


def select_columns(
    source: Source,
    target: Selector | Sequence[Selector] | None,
    features: Sequence[Selector] | None,
    aside: tuple[Selector | None, str | None],
    labelled: bool = False,
) -> Selection:
    """Find the columns that a user chose, as `dkgp.data.sources.ingest.ingest` takes them.

    `aside` are the weights and the test mask, which are no features; `labelled` says that the target is a label.

    Raises `InputError` where a column is not there, is chosen twice, or none is left for the features.
    """
    weights, mask = aside
    wanted = [] if target is None else [target] if isinstance(target, str | int) else list(target)
    what = "column of labels" if labelled else "target"
    targets = tuple(column for selector in wanted for column in find_columns(source, selector, what))
    if labelled and len(targets) != 1:
        raise InputError(f"The labels '{wanted[0]}' have {len(targets)} columns; choose one, as in '{wanted[0]}:0'.")
    mask_columns = find_columns(source, mask, "test mask") if mask is not None else ()
    weighing = find_columns(source, weights, "column of weights") if weights is not None else ()
    if len(weighing) > 1 or set(weighing) & {*targets, *mask_columns}:
        raise InputError(
            f"The weights '{weights}' are {len(weighing)} columns, or labels or test mask; choose another."
        )
    if len(mask_columns) > 1:
        raise InputError(f"The test mask '{mask}' has {len(mask_columns)} columns; choose one, as in '{mask}:0'.")
    if features is not None:
        chosen = [features] if isinstance(features, str | int) else list(features)
        found = tuple(column for selector in chosen for column in find_columns(source, selector, "feature"))
        both = [column.name for column in found if column in targets or column in weighing]
        if both:
            what = "target" if both[0] in [column.name for column in targets] else "column of weights"
            raise InputError(f"The {what} '{both[0]}' is among the features; leave it out of them.")
    else:
        # A mask that is one column of several takes the whole array with it: the other splits are no features either.
        masked = {column.array for column in mask_columns if column.array} if source.groups else set()
        found = tuple(
            column
            for column in source.positional
            if column not in (*targets, *weighing, *mask_columns) and column.array not in masked
        )
    if not found:
        raise InputError(
            f"'{source.url}' has no column left for the features; it has "
            f"{quoted([column.name for column in source.columns])}."
        )
    check_names([column.name for column in found], [column.name for column in targets])
    encoder = LabelEncoder(targets[0].name) if labelled else None
    encoded = tuple(replace(column, encode=encoder) for column in targets) if labelled else targets
    return Selection(found, encoded, weighing, mask_columns[0] if mask_columns else None, encoder)
