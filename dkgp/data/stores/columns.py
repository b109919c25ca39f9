"""Names of a data set's columns and classes, checked before anything is written under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dkgp.data.classes import check_classes
from dkgp.data.stores.manifest import json_bytes
from dkgp.data.types import Json
from dkgp.errors import InputError


@dataclass(frozen=True)
class ColumnNames:
    """Names of features, targets and, where the one target is a label, classes; the weights' where there are such.

    `noise` is the name of the column of the one target's known noise, where there is one.

    `ids` are the columns that identify samples: their names, and how many bytes of UTF-8 their longest texts take.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    weight: str | None = None
    ids: tuple[tuple[str, int], ...] = ()
    noise: str | None = None

    @classmethod
    def checked(
        cls,
        features: Sequence[str],
        targets: Sequence[str],
        classes: Sequence[str] | None = None,
        weight: str | None = None,
        ids: Sequence[tuple[str, int]] = (),
        noise: str | None = None,
    ) -> ColumnNames:
        """The names as tuples; `InputError` where columns share a name, or the classes do not fit the targets."""
        names = cls(tuple(map(str, features)), tuple(map(str, targets)), None, weight, tuple(ids), noise)
        if not names.features:
            raise InputError("There is no feature; expected at least one column besides the target.")
        _require_distinct("feature", names.features)
        _require_distinct("target", names.targets)
        _require_distinct("id", tuple(name for name, _ in names.ids))
        for name in (weight, noise):
            if name is not None:
                _require_distinct("feature", (*names.features, name))
        others = {*names.features, weight, noise}
        both = [name for name in names.targets if name in others]
        if both:
            raise InputError(f"The target '{both[0]}' is among the features; leave it out of them.")
        if classes is None:
            return names
        if len(names.targets) != 1:
            raise InputError(f"Labels are one column; got {len(names.targets)} targets and the classes of a label.")
        return replace(names, classes=check_classes(classes))

    @classmethod
    def of_shape(
        cls,
        d: int,
        p: int,
        features: Sequence[str] | None,
        targets: Sequence[str] | None,
        classes: Sequence[str] | None,
    ) -> ColumnNames:
        """The names for d features and p targets; by default x0, x1, ... and y, or y0, y1, ... for several."""
        numbered = ["y"] if p == 1 else [f"y{column}" for column in range(p)]
        if features is None:
            features = [f"x{column}" for column in range(d)]
        return cls.checked(features, numbered if targets is None else targets, classes)

    @property
    def beside(self) -> tuple[tuple[str, str], ...]:
        """The column that each sample counts by, its array's name and its own; none where all samples count alike."""
        if self.noise is not None:
            return (("noise", self.noise),)
        return () if self.weight is None else (("w", self.weight),)

    def to_json(self) -> Json:
        """The names as a store has them; of classes only where there are labels."""
        named: Json = {"feature_names": list(self.features), "target_names": list(self.targets)}
        return named if self.classes is None else {**named, "classes": list(self.classes)}

    def fingerprint_header(self, n_samples: int) -> bytes:
        """The part of a fingerprint beside the values: the names, and how many samples."""
        return json_bytes({**self.to_json(), "n_samples": n_samples})


def _require_distinct(column: str, names: tuple[str, ...]) -> None:
    repeated = min((name for name, count in Counter(names).items() if count > 1), default=None)
    if repeated is not None:
        raise InputError(f"The {column} name '{repeated}' occurs {names.count(repeated)} times; names must differ.")
