"""Columns of a training set as its store, or the store of its model, describes them: for new data of the same form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dkgp.data.classes import plain_names
from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.manifest import described_whole, read_manifest, recognise, texts
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.types import Json, Location
from dkgp.errors import StoreError


@dataclass(frozen=True)
class TrainingColumns:
    """Names, encoding and standardisation of a training set.

    Attributes
    ----------
    features, targets
        Names; of a model the features that it keeps.
    encoding
        Rules for columns of text, dates and gaps; None where all columns were numbers.
    classes
        Names of classes, where the target is a label; else None.
    standardisation
        Of the features that are kept, and of the targets.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    encoding: Json | None
    classes: tuple[str, ...] | None
    standardisation: Standardisation

    @classmethod
    def read(cls, url: Location) -> TrainingColumns:
        """Read the columns from a dataset or model store; `StoreError` where there is no such store."""
        address = normalise_url(url)
        kind = recognise(address)
        metadata = read_manifest(address, kind or "dataset")["metadata"]
        if not {"feature_names", "target_names", "standardisation"} <= set(metadata):
            raise StoreError(
                f"'{address}' is a {kind} store; expected a dataset or a model store, which know their columns."
            )
        with described_whole(address, "write the store again"):
            return cls(
                texts(metadata["feature_names"]),
                texts(metadata["target_names"]),
                metadata.get("encoding"),
                plain_names(metadata.get("classes")),
                Standardisation.from_json(metadata["standardisation"]),
            )

    def standardisation_of(self, features: Sequence[str], targets: Sequence[str]) -> Standardisation | None:
        """Return the standardisation of columns in the given order; None where a column of the training set lacks."""
        mapped, kept = self.standardisation, self.features
        if len(kept) == mapped.n_raw_features:
            kept = tuple(name for name, keep in zip(kept, mapped.kept, strict=True) if keep)
        position = {name: index for index, name in enumerate(kept)}
        target_position = {name: index for index, name in enumerate(self.targets)}
        chosen = [position[name] for name in features if name in position]
        if len(chosen) < mapped.input_mean.size or set(targets) != set(self.targets):
            return None
        if mapped.target_mean.size != len(self.targets):
            return None
        order = np.array([target_position[name] for name in targets], dtype=np.int64)
        return replace(
            mapped,
            input_mean=mapped.input_mean[chosen],
            input_std=mapped.input_std[chosen],
            target_mean=mapped.target_mean[order],
            target_std=mapped.target_std[order],
            kept=tuple(name in position for name in features),
            transforms=tuple(mapped.transforms[index] for index in order.tolist()) if mapped.transforms else (),
        )
