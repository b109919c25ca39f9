"""A model: one frozen dataclass, whether it was trained here, lies in a store, or belongs to an estimator.

A kind of model derives from `Model`. Its fields are the store: those made by `array` are Zarr arrays, all others are
the JSON of the manifest (`dkgp.codec`). Saving, opening, checks of shapes and addresses in memory follow from these.
"""

from __future__ import annotations

import platform
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import metadata as package_metadata
from typing import Any, ClassVar, Required, Self, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from dkgp.codec import fields_from_json, is_required, rule, to_json
from dkgp.data.remote.storage import is_local, normalise_url
from dkgp.data.stores.arrays import StoredArray, open_arrays, row_ranges
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.references import check_reference, referenced_training_set
from dkgp.data.stores.row_arrays import MemoryArray, RowArray
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import NewStore, new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StoreError
from dkgp.html import html_repr, model_panel

Layout: TypeAlias = tuple[tuple[int, ...], tuple[str, ...]]
"""Shape and dimension names of an array."""

_ARRAY = "dkgp.array"
# Models in this process's memory by address. No store is ever written to such an address.
_RESIDENT: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()
_ADDRESS = "memory://dkgp-model-"


def array(*dimensions: str, fortran: bool = False) -> dict[str, Any]:
    """Return the `metadata` of a field that is an array of the store: float64, or int64 if its name is `indices`.

    Parameters
    ----------
    dimensions
        Names of its axes. Axes of one name have one length.
    fortran
        Open the array in Fortran order, as triangular solves take it.
    """
    return {**rule(stored=False), _ARRAY: (dimensions, fortran)}


@dataclass(frozen=True)
class ModelAddress:
    """Address of a model that one process has opened, for others, which may find that model there and no other."""

    url: str  # of a store that the others can read, or of a model in their own memory
    # Address of the training set of a model by reference, which the first process has checked; "" for a model that
    # carries its inputs; None for any that may be named.
    reference: str | None = None
    written: str = ""  # checksum of the store's manifest; "" for any


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """A trained model; picklable.

    Attributes
    ----------
    url
        Address of the store, or of the model in this process's memory; empty before either.
    standardisation, feature_names, target_names, fingerprint
        Those of the training set.
    summary
        The JSON document of the command that trained the model.
    versions
        Versions of the software that trained the model.
    training_url
        Address of the training set at that time.
    encoding
        Rules for the training set's columns of text, dates and missing values; None if all columns were numbers.
    """

    kind: ClassVar[str]
    # Name in messages, with its article, and the same after "expected".
    title: ClassVar[str]
    expected: ClassVar[str]
    # Name of one form of the kind; empty if there is one form.
    called: ClassVar[str] = ""
    # Whether predictions of targets have variances.
    has_variances: ClassVar[bool] = False
    # Fields that the root of the Zarr group repeats.
    shown: ClassVar[tuple[str, ...]] = ("feature_names", "target_names", "fingerprint", "versions")

    url: str = field(default="", metadata=rule(stored=False))
    # Checksum of the manifest of the store that the model was read from; empty for a model in memory.
    written: str = field(default="", metadata=rule(stored=False))
    standardisation: Standardisation
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    fingerprint: str
    summary: Json
    versions: dict[str, str]
    training_url: Any
    encoding: Json | None = field(default=None, metadata=rule(omit_default=True))

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.feature_names)

    @property
    def n_targets(self) -> int:
        """Number of targets, p."""
        return len(self.target_names)

    @property
    def n_outputs(self) -> int:
        """Number of predicted functions: targets, or decision functions."""
        return self.n_targets

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by code; None for a regression."""
        return None

    @property
    def without_sums(self) -> str | None:
        """Reason, as the end of a message, if predictions are no sums over all training samples; None if they are."""
        return None

    @property
    def averages(self) -> bool:
        """Whether probabilities are averages over variances of latent functions."""
        return False

    @property
    def variance_gap(self) -> float | None:
        """Gap of variances that `dkgp train --variance-gap` set for predictions; None otherwise."""
        return self.summary.get("variance_gap")

    @property
    def format_version(self) -> int | None:
        """Format of the store: the oldest that holds this model; None for the newest."""
        return None

    def described(self) -> Json:
        """Return the JSON of the manifest."""
        document: Json = to_json(self)
        return document

    def save(self, url: Location, *, by_reference: bool = False, overwrite: bool = False) -> None:
        """Write the model's store.

        Parameters
        ----------
        by_reference
            Refer to the training set's store instead of copying its inputs. Only models that are sums over all samples
            have such inputs.
        overwrite
            Replace a model store of this kind that is there. Anything else that is there is left alone.

        Raises
        ------
        InputError
            Missing fields; arrays that do not fit each other or the training set; a noise variance that is not
            positive.
        NumericalError
            An array holds a NaN or infinity.
        OutputExistsError, StorageError
            The place is taken, or cannot be written to; everything written is removed.
        """
        missing = [each.name for each in fields(self) if is_required(each) and getattr(self, each.name) is None]
        if missing:
            raise InputError(f"{self.called or self.title} needs {' and '.join(map(repr, missing))}; got none.")
        self._check(by_reference)
        arrays = self._checked_arrays()
        content = self.described()
        if "by_reference" in content:
            content["by_reference"] = by_reference
        shown = {name: content[name] for name in self.shown}
        # On object storage the earlier store is removed before the new one is written.
        model = self.in_memory() if overwrite and not is_local(url) and self.reads(str(url)) else self
        with new_store(normalise_url(url), self.kind, shown, overwrite, self.format_version) as store:
            for name, (values, dimensions) in arrays.items():
                store.write_array(name, values, dimensions)
            model._write_more(store, content)
            store.commit(content)

    @classmethod
    def open(cls, url: Location, *, reference: str | None = None, written: str = "") -> Self:
        """Open a model's store. Support inputs of a model of all samples are read when needed, all else at once.

        Parameters
        ----------
        reference
            Address that a model by reference must name as its training set, "" if it may name none: another process has
            found and checked it. By default any address that `require_reference` accepts.
        written
            Checksum that the store's manifest must have: another process has opened that store. By default any.

        Raises
        ------
        StoreError
            Nothing there, another kind of store, unfinished, or with a missing or damaged chunk; for a model by
            reference also a training set that is gone, has changed or may not be named.
        """
        address, manifest, arrays = open_arrays(url, cls.kind)
        if written and manifest.written != written:
            raise StoreError(f"The model '{address}' was changed while it was used. Run the command again.")
        content = manifest["metadata"]
        with described_whole(address, "save the model again"):
            kind = cls._kind_in(content, arrays)
            about = fields_from_json(kind, content)
            kind._check_description(about, arrays)
            layouts = kind.layouts(about, {name: stored.shape for name, stored in arrays.items()})
            _require_arrays(kind, address, arrays, layouts)
        fields = {**about, **kind._support_in(address, content, arrays, reference)}
        for name, (dimensions, fortran) in array_fields(kind).items():
            if name in arrays:
                fields[name] = _read(arrays[name], len(dimensions), fortran)
        return kind(url=address, written=manifest.written, **fields)

    @classmethod
    def find(cls, address: ModelAddress) -> Self:
        """Return the model at an address: from this process's memory, or from its store. Errors as for `open`."""
        model = _RESIDENT.get(address.url)
        if model is None:
            return cls.open(address.url, reference=address.reference, written=address.written)
        if isinstance(model, cls):
            return model
        # Raised here: errors of storage may live on in its threads, and their frames would keep the model.
        raise StoreError(f"{model.title} is in memory there; expected {cls.expected}.")

    @property
    def address(self) -> ModelAddress:
        """The address by which other processes find this model."""
        return ModelAddress(self.url, self.reference, self.written)

    @property
    def reference(self) -> str:
        """Address of the support inputs of a model by reference; "" for a model that carries them, or needs none."""
        return ""

    @property
    def is_sparse(self) -> bool:
        """True for a model that needs no training set."""
        return True

    def supported_by(self, dataset: Dataset | None) -> Self:
        """Return the model with its training set, whose inputs it is a sum over; itself if it needs none."""
        return self

    def reads(self, url: str) -> bool:
        """Return True if arrays of the model are read from the store at an address when they are needed."""
        return False

    def in_memory(self) -> Self:
        """Return the model with all its arrays in memory."""
        return self

    def alone(self) -> Self:
        """Return the model without its address and its training set."""
        return replace(self, url="", written="")

    def resident(self) -> Self:
        """Return the model with an address in this process, valid for as long as the returned object is alive."""
        model = replace(self, url=f"{_ADDRESS}{uuid.uuid4().hex}", written="")
        _RESIDENT[model.url] = model
        return model

    # ------------------------------------------------------------------------------------------------------------ hooks

    @classmethod
    def _kind_in(cls, content: Json, arrays: Mapping[str, StoredArray]) -> type[Self]:
        """Return the class of an opened model, if the kind has several."""
        return cls

    @classmethod
    def layouts(cls, about: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Layout]:
        """Return the layout of every array that the kind may have.

        Parameters
        ----------
        about
            The fields that are no arrays.
        shapes
            Shapes of the arrays that are there. The first array with an axis says how long it is.
        """
        sizes = {"feature": len(about["feature_names"]), "target": len(about["target_names"]), **cls._sizes(about)}
        for name, (dimensions, _) in array_fields(cls).items():
            for dimension, size in zip(dimensions, shapes.get(name, ()), strict=False):
                sizes.setdefault(dimension, size)
            if name in shapes:  # the other axis of a square
                sizes |= {other: sizes["basis"] for other in ("other", "column") if "basis" in sizes}
        return {
            name: (tuple(sizes.get(dimension, 0) for dimension in dimensions), dimensions)
            for name, (dimensions, _) in array_fields(cls).items()
        }

    @classmethod
    def _sizes(cls, about: Mapping[str, Any]) -> dict[str, int]:
        """Return lengths of further axes that the description tells."""
        return {}

    @classmethod
    def _check_description(cls, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        """Raise `ValueError` if fields of an opened manifest contradict each other, or the arrays that are there."""
        names, targets, to = about["feature_names"], about["target_names"], about["standardisation"]
        if sum(to.kept) != len(names):
            raise ValueError(f"{len(names)} features, {sum(to.kept)} of them kept")
        if to.target_mean.size != len(targets):
            raise ValueError(f"{len(targets)} targets, a standardisation of {to.target_mean.size}")

    @classmethod
    def _support_in(
        cls, url: str, content: Json, arrays: Mapping[str, StoredArray], reference: str | None
    ) -> dict[str, Any]:
        """Return further fields: arrays that stay in this store, or in the training set's."""
        return {}

    def _check(self, by_reference: bool) -> None:
        """Raise an error if the model cannot be saved."""
        if by_reference:
            raise InputError(f"`by_reference` needs a model of all samples; {self.title} needs no inputs.")

    def _write_more(self, store: NewStore, content: Json) -> None:
        """Write arrays that are no fields."""

    def _checked_arrays(self) -> dict[str, tuple[NDArray[Any], tuple[str, ...]]]:
        """Return the arrays as they are written, with their dimensions.

        Raises `InputError` for an array of another shape than expected, `NumericalError` for a NaN or infinity.
        """
        called = f"the {self.title.partition(' ')[2]}"
        present = {
            name: np.asarray(values) for name in array_fields(type(self)) if (values := getattr(self, name)) is not None
        }
        layouts = self.layouts(vars(self), {name: values.shape for name, values in present.items()})
        arrays: dict[str, tuple[NDArray[Any], tuple[str, ...]]] = {}
        for name, values in present.items():
            shape, dimensions = layouts[name]
            if values.shape not in (shape, (*shape, 1)):  # a single column may be stored as a vector
                raise InputError(f"'{name}' of {called} has shape {values.shape}; expected {shape}.")
            if not np.isfinite(values).all():
                raise NumericalError(f"'{name}' of {called} is not finite; the model is not saved.")
            dtype = np.int64 if name == "indices" else np.float64
            arrays[name] = np.ascontiguousarray(values, dtype=dtype).reshape(shape), dimensions
        return arrays

    _panel, _repr_html_ = model_panel, html_repr


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelModel(Model):
    """A model with a kernel.

    Attributes
    ----------
    kernel
        The kernel's JSON.
    noise_variance
        s2, on the standardised scale.
    history
        A JSON record for each round.
    certificate
        JSON of the proven bounds; empty if nothing is proven.
    noise_model
        JSON of the noise model that gives samples and new observations their noise. None if all have s2.
    trend
        JSON of the mean's coefficients, q for each target, and of their proven bounds. None if the mean has none.
    """

    shown = ("kernel", "noise_variance", *Model.shown)

    kernel: Json
    noise_variance: float
    history: list[Json]
    certificate: Json
    noise_model: Json | None = field(default=None, metadata=rule(omit_default=True))
    trend: Json | None = field(default=None, metadata=rule(omit_default=True))

    @property
    def coefficients(self) -> FloatArray:
        """Weights of the kernel's columns, a row for each point that the model is a sum over."""
        raise NotImplementedError

    @property
    def n_support(self) -> int:
        """Number of points that the model is a sum over."""
        return len(self.coefficients)

    @classmethod
    def _check_description(cls, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super()._check_description(about, arrays)
        if not about["noise_variance"] > 0.0:
            raise ValueError(f"a noise variance of {about['noise_variance']}")

    def _check(self, by_reference: bool) -> None:
        super()._check(by_reference)
        self._require_noise()

    def _require_noise(self) -> None:
        if not (np.isfinite(self.noise_variance) and self.noise_variance > 0):
            raise InputError(f"The noise variance must be positive; got {self.noise_variance}.")


@dataclass(frozen=True, eq=False, kw_only=True)
class SupportedModel(KernelModel):
    """A model that may be a sum over all training samples, whose inputs it carries or refers to.

    Attributes
    ----------
    by_reference
        Whether the support inputs lie in the training set's store.
    chunk_rows
        Rows of a chunk of the support inputs.
    """

    by_reference: bool = False
    chunk_rows: int = 1
    _support: RowArray | Dataset | None = field(default=None, repr=False)

    @property
    def is_sparse(self) -> bool:
        """True for a model of prototypes, which needs no training set."""
        return False

    @property
    def reference(self) -> str:
        """Address of the support inputs of a model by reference; "" for a model that carries them."""
        return self._support.url if isinstance(self._support, Dataset) else ""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs [start, stop), shape (stop - start, d), bit-identical to the training set's.

        Raises `StoreError` if a chunk is missing or damaged.
        """
        if isinstance(self._support, Dataset):
            return self._support.inputs(start, stop)
        return self._features(self.rows(start, stop))

    def rows(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs and covariates [start, stop), shape (stop - start, d + c). Errors as there."""
        assert self._support is not None
        return (
            self._support.rows(start, stop) if isinstance(self._support, Dataset) else self._support.read(start, stop)
        )

    def input_rows(self, indices: IntArray) -> FloatArray:
        """Standardised support inputs at `indices`, shape (len(indices), d). Errors as for `inputs`."""
        assert self._support is not None
        if isinstance(self._support, Dataset):
            return self._support.input_rows(indices)
        return self._features(self._support.rows(indices))

    def _features(self, rows: FloatArray) -> FloatArray:
        return rows if not self.standardisation.covariates else np.ascontiguousarray(rows[:, : self.n_features])

    def row_chunks(self) -> list[tuple[int, int]]:
        """Row ranges [start, stop) of the chunks of the support inputs, in order."""
        return row_ranges(self.n_support, self.chunk_rows)

    def reads(self, url: str) -> bool:
        """Return True if arrays of the model are read from the store at an address when they are needed."""
        return self._support is not None and self._support.reads(url)

    def in_memory(self) -> Self:
        """Return the model with all its arrays in memory."""
        return replace(self, by_reference=False, _support=MemoryArray(self.inputs(0, self.n_support)))

    def alone(self) -> Self:
        """Return the model without its address and its training set."""
        return replace(super().alone(), _support=None)

    def supported_by(self, dataset: Dataset | None) -> Self:
        """Return the model with its training set, whose inputs it is a sum over; itself if it needs none."""
        if dataset is None or self.is_sparse:
            return self
        return replace(self, by_reference=True, chunk_rows=dataset.chunk_rows, _support=dataset)

    @classmethod
    def _support_in(
        cls, url: str, content: Json, arrays: Mapping[str, StoredArray], reference: str | None
    ) -> dict[str, Any]:
        outside = content.get("by_reference")
        return {"_support": referenced_training_set(url, content, reference) if outside else arrays.get("inputs")}

    @classmethod
    def _sizes(cls, about: Mapping[str, Any]) -> dict[str, int]:
        support = about.get("_support")
        if support is None:
            return {}
        return {"sample": support.n_samples if isinstance(support, Dataset) else support.shape[0]}

    @classmethod
    def layouts(cls, about: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Layout]:
        """As for every model; support inputs besides."""
        layouts = super().layouts(about, shapes)
        n = shapes.get("alpha", (0,))[0]
        width = len(about["feature_names"]) + len(about["standardisation"].covariates)
        return {**layouts, "inputs": ((n, width), ("sample", "feature"))}

    def _check(self, by_reference: bool) -> None:
        self._require_noise()
        if self._support is None and not self.is_sparse:
            raise InputError(f"{self.called or self.title} needs its training set; got none.")
        if by_reference:
            if self.is_sparse or not isinstance(self._support, Dataset):
                raise InputError(
                    f"`by_reference` needs {self.title[0].lower()}{self.title[1:]} of all samples and its "
                    "training set; leave it out."
                )
            check_reference(self._support.url)

    def _write_more(self, store: NewStore, content: Json) -> None:
        """Copy the standardised inputs and covariates of the training set, unless the store refers to them."""
        if content["by_reference"] or self.is_sparse:
            return
        columns = [*self.feature_names, *self.standardisation.covariate_names]
        names = {"names": columns, "scale": "standardised"}
        shape = (self.n_support, len(columns))
        inputs = store.create_array("inputs", shape, ("sample", "feature"), self.chunk_rows, names)
        for start, stop in self.row_chunks():
            inputs.write(start, self.rows(start, stop))


class TrainingFacts(TypedDict, total=False):
    """Facts about a model's training: the fields of `KernelModel` that do not come from the training set."""

    kernel: Required[Json]
    noise_variance: Required[float]
    history: Sequence[Mapping[str, Any]]
    certificate: Json | None
    summary: Json | None
    noise_model: Json | None
    trend: Json | None


def about_model(dataset: Dataset, **facts: Unpack[TrainingFacts]) -> dict[str, Any]:
    """Return the fields of `KernelModel` for a model of a training set, made by this software."""
    return {
        **about_training(dataset, facts.get("summary") or {}),
        "kernel": facts["kernel"],
        "noise_variance": float(facts["noise_variance"]),
        "history": [dict(record) for record in facts.get("history", ())],
        "certificate": facts.get("certificate") or {},
        "noise_model": facts.get("noise_model"),
        "trend": facts.get("trend"),
    }


def about_training(dataset: Dataset, summary: Json) -> dict[str, Any]:
    """Return the fields of `Model` for a model that was trained on a data set by this software."""
    return {
        "standardisation": dataset.standardisation,
        "feature_names": dataset.feature_names,
        "target_names": dataset.target_names,
        "fingerprint": dataset.fingerprint,
        "summary": summary,
        "versions": dict(_versions_at_first()),
        "training_url": dataset.url,
        "encoding": dataset.encoding,
    }


@cache
def _versions_at_first() -> dict[str, str]:
    """Return installed versions, as they were when this process first asked: reading them takes milliseconds."""
    versions = {"python": platform.python_version()}
    for package in ("dkgp", "numpy", "scipy", "numba", "zarr", "dask"):
        try:
            versions[package] = package_metadata.version(package)
        except package_metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def resident_model(url: str) -> Model | None:
    """Return the model in memory at an address; None if there is none."""
    return _RESIDENT.get(url)


def is_resident(url: str) -> bool:
    """Return True for the address of a model in memory."""
    return url.startswith(_ADDRESS)


def _arrays_of(kind: Any) -> dict[str, tuple[tuple[str, ...], bool]]:
    return {each.name: each.metadata[_ARRAY] for each in fields(kind) if _ARRAY in each.metadata}


array_fields: Callable[[Any], dict[str, tuple[tuple[str, ...], bool]]] = cache(_arrays_of)
"""Return the arrays of a kind of model: dimensions, and whether they open in Fortran order."""


def _read(stored: StoredArray, axes: int, fortran: bool) -> NDArray[Any]:
    """Return a whole array; on its own so that no second copy outlives the reading."""
    values: NDArray[Any] = stored.read_as_stored(0, stored.shape[0])
    if values.ndim < axes:
        values = values.reshape(*values.shape, 1)
    return np.asfortranarray(values) if fortran else values


def _require_arrays(
    kind: type[Model], url: str, arrays: Mapping[str, StoredArray], layouts: Mapping[str, Layout]
) -> None:
    """Refuse a store that lacks an array, or whose arrays do not fit its manifest; `StoreError`."""
    for each in fields(kind):
        if _ARRAY in each.metadata and is_required(each) and each.name not in arrays:
            raise StoreError(f"The manifest of '{url}' lacks the array '{each.name}'; save the model again.")
    for name, stored in arrays.items():
        expected = layouts[name][0] if name in layouts else "no such array"
        if stored.shape != expected:
            raise StoreError(
                f"The array '{name}' of '{url}' has shape {stored.shape}; its manifest has {expected}. Save the "
                "model again."
            )
