"""The description that stored models of every kind share; their arrays, checked and written.

A kind of model is a record that derives from `TrainedRecord`: its fields are the arrays and the JSON of its store.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata as package_metadata
from typing import Any, ClassVar, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from dkgp.data.panels import Panel, record_panel
from dkgp.data.stores.arrays import StoredArray, row_ranges
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import texts, typed
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import NewStore
from dkgp.data.types import FloatArray, IntArray, Json
from dkgp.errors import InputError, NumericalError, StoreError
from dkgp.html import HtmlShown

# What a store that is being written says of itself, for whoever resumes or reads it.
SHOWN = ("kernel", "noise_variance", "feature_names", "target_names", "fingerprint", "versions")


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedRecord(HtmlShown):
    """Record of something that was trained.

    Attributes
    ----------
    url
        Where the store is.
    standardisation, feature_names, target_names, fingerprint
        Of the training set.
    summary
        What the command that trained it prints as JSON.
    versions
        Versions of the software that wrote the model.
    training_url
        Where the training set was.
    encoding
        What the training set's columns of text, dates and gaps became; None where all were numbers.
    """

    url: str
    standardisation: Standardisation
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    fingerprint: str
    summary: Json
    versions: dict[str, str]
    training_url: str
    encoding: Json | None = None

    _as_written: ClassVar[tuple[str, ...]] = ("fingerprint", "summary", "versions", "training_url")

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.feature_names)

    @property
    def n_targets(self) -> int:
        """Number of targets, p."""
        return len(self.target_names)

    def _panel(self) -> Panel:
        return record_panel(self)

    def described(self) -> Json:
        """The description as JSON, but for its address."""
        return {
            "standardisation": self.standardisation.to_json(),
            "feature_names": list(self.feature_names),
            "target_names": list(self.target_names),
            **({} if self.encoding is None else {"encoding": self.encoding}),
            **{name: getattr(self, name) for name in self._as_written},
        }

    @classmethod
    def description_in(cls, url: str, content: Json) -> dict[str, Any]:
        """The description's fields from a store's JSON, as keywords of the record.

        `KeyError` where one is missing, `TypeError` or `ValueError` where it is nothing of the kind.
        """
        typed(content, fingerprint=str, summary=dict, versions=dict)
        names, targets = texts(content["feature_names"]), texts(content["target_names"])
        standardisation = Standardisation.from_json(content["standardisation"])
        if sum(standardisation.kept) != len(names):
            raise ValueError(f"{len(names)} features, {sum(standardisation.kept)} of them kept")
        return {
            "url": url,
            "standardisation": standardisation,
            "feature_names": names,
            "target_names": targets,
            "encoding": content.get("encoding"),
            **{name: content[name] for name in cls._as_written},
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelDescription(TrainedRecord):
    """Description of a kernel model, of any kind.

    Attributes
    ----------
    kernel
        The kernel's JSON.
    noise_variance
        s2, on the standardised scale.
    history, certificate, summary
        As given to who saved it.
    noise_model
        JSON of the noise model that the samples' noise was reckoned by, and that new observations have theirs by. None
        where all have s2.
    trend
        JSON of the mean's coefficients, of which there are q for each target, and of what is proven of them. None where
        the mean has none.
    """

    kernel: Json
    noise_variance: float
    history: list[Json]
    certificate: Json
    noise_model: Json | None = None
    trend: Json | None = None

    _as_written = (*TrainedRecord._as_written, "kernel", "noise_variance", "history", "certificate")

    def described(self) -> Json:
        """As of every record."""
        beside = {"noise_model": self.noise_model, "trend": self.trend}
        return {**super().described(), **{name: value for name, value in beside.items() if value is not None}}

    @classmethod
    def description_in(cls, url: str, content: Json) -> dict[str, Any]:
        """As of every record."""
        typed(content, kernel=dict, noise_variance=(int, float), history=list, certificate=dict)
        if not content["noise_variance"] > 0.0:
            raise ValueError(f"a noise variance of {content['noise_variance']}")
        beside = {name: content.get(name) for name in ("noise_model", "trend")}
        return {
            **super().description_in(url, content),
            "noise_variance": float(content["noise_variance"]),
            **beside,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class SupportedDescription(ModelDescription):
    """Description of a model that is a sum over the training samples, whose inputs it carries or refers to.

    Attributes
    ----------
    by_reference
        Whether the support inputs lie in the training set's store.
    chunk_rows
        Rows of a chunk of the support inputs.
    """

    by_reference: bool = False
    chunk_rows: int = 1
    _support: StoredArray | Dataset | None = field(default=None, repr=False)

    @property
    def reference(self) -> str:
        """Place of the support inputs, for a model by reference; "" for one that carries them."""
        return self._support.url if isinstance(self._support, Dataset) else ""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs [start, stop), shape (stop - start, d), bit-identical to the training set's.

        Raises `StoreError` where a chunk is missing or damaged.
        """
        assert self._support is not None
        return (
            self._support.inputs(start, stop) if isinstance(self._support, Dataset) else self._support.read(start, stop)
        )

    def input_rows(self, indices: IntArray) -> FloatArray:
        """Standardised support inputs at `indices`, shape (len(indices), d). Errors as for `inputs`."""
        assert self._support is not None
        return self._support.input_rows(indices) if isinstance(self._support, Dataset) else self._support.rows(indices)


class TrainingFacts(TypedDict, total=False):
    """Facts about a model's training.

    The kernel's JSON; s2 on the standardised scale; and, as JSON, a record per round, what is proven about the
    solution, what `train --json` prints, and the noise model and the mean's coefficients, where there are some.
    """

    kernel: Required[Json]
    noise_variance: Required[float]
    history: Sequence[Mapping[str, Any]]
    certificate: Json | None
    summary: Json | None
    noise_model: Json | None
    trend: Json | None


def about_model(dataset: Dataset, url: str = "", **facts: Unpack[TrainingFacts]) -> dict[str, Any]:
    """The fields of `ModelDescription` for a model of a training set, made by this software."""
    return {
        **about_training(dataset, facts.get("summary") or {}, url),
        "kernel": facts["kernel"],
        "noise_variance": float(facts["noise_variance"]),
        "history": [dict(record) for record in facts.get("history", ())],
        "certificate": facts.get("certificate") or {},
        "noise_model": facts.get("noise_model"),
        "trend": facts.get("trend"),
    }


def about_training(dataset: Dataset, summary: Json, url: str = "") -> dict[str, Any]:
    """The fields of `TrainedRecord` for what was trained on a data set by this software."""
    return {
        "url": url,
        "standardisation": dataset.standardisation,
        "feature_names": dataset.feature_names,
        "target_names": dataset.target_names,
        "fingerprint": dataset.fingerprint,
        "summary": summary,
        "versions": software_versions(),
        "training_url": dataset.url,
        "encoding": dataset.encoding,
    }


def software_versions() -> dict[str, str]:
    """Versions of what a model is made with."""
    return dict(_versions_at_first())


@cache
def _versions_at_first() -> dict[str, str]:
    """As they are installed when this process first asks: reading their metadata takes milliseconds."""
    versions = {"python": platform.python_version()}
    for package in ("dkgp", "numpy", "scipy", "numba", "zarr", "dask"):
        try:
            versions[package] = package_metadata.version(package)
        except package_metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def require_noise(noise_variance: float) -> None:
    """Refuse a noise variance that no model can have; `InputError`."""
    if not (np.isfinite(noise_variance) and noise_variance > 0):
        raise InputError(f"The noise variance must be positive; got {noise_variance}.")


def checked_arrays(record: TrainedRecord, shapes: Mapping[str, tuple[int, ...]], model: str) -> dict[str, NDArray[Any]]:
    """A record's arrays as they are written, by name; `model` is what messages call it.

    Raises `InputError` where one has another shape than expected, `NumericalError` where it holds a NaN or infinity.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, shape in shapes.items():
        values = np.asarray(getattr(record, name))
        if values.shape != shape:
            raise InputError(f"'{name}' of {model} has shape {values.shape}; expected {shape}.")
        if not np.isfinite(values).all():
            raise NumericalError(f"'{name}' of {model} is not finite; the model is not saved.")
        arrays[name] = np.ascontiguousarray(values, dtype=np.int64 if name == "indices" else np.float64)
    return arrays


def require_targets(described: Mapping[str, Any]) -> None:
    """Refuse a regression's description whose targets are not those of its map; `ValueError`."""
    names, mapped = described["target_names"], described["standardisation"].target_mean.size
    if len(names) != mapped:
        raise ValueError(f"{len(names)} targets, a standardisation of {mapped}")


def require_shapes(
    url: str, arrays: Mapping[str, StoredArray], shapes: Mapping[str, tuple[int, ...]], needed: Collection[str] = ()
) -> None:
    """Refuse a store that lacks one of the `needed` arrays, or whose arrays do not fit what its manifest tells of it.

    Raises `StoreError`.
    """
    for name in needed:
        if name not in arrays:
            raise StoreError(f"The manifest of '{url}' lacks the array '{name}'; save the model again.")
    for name, array in arrays.items():
        if array.shape != shapes.get(name):
            expected = shapes.get(name, "no such array")
            raise StoreError(
                f"The array '{name}' of '{url}' has shape {array.shape}; its manifest tells of {expected}. Save the "
                "model again."
            )


def read_arrays(arrays: Mapping[str, StoredArray]) -> dict[str, Any]:
    """All of the arrays, in the types that they are stored in; `StoreError` where a chunk is missing or damaged."""
    return {name: stored.read_as_stored(0, stored.shape[0]) for name, stored in arrays.items()}


def write_inputs(store: NewStore, dataset: Dataset, chunk_rows: int) -> None:
    """Copy the standardised inputs of a training set, which a model of all samples predicts from."""
    names = {"names": list(dataset.feature_names), "scale": "standardised"}
    shape = (dataset.n_samples, dataset.n_features)
    inputs = store.create_array("inputs", shape, ("sample", "feature"), chunk_rows, names)
    for start, stop in row_ranges(dataset.n_samples, chunk_rows):
        inputs.write(start, dataset.inputs(start, stop))
