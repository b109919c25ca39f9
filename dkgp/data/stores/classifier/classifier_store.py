"""Classifiers in a Zarr store: classes, decisions and their calibration, in either of two forms.

| form | decisions are sums over | arrays |
|---|---|---|
| `fixed-size` | k prototypes | `prototypes` (k, d), `weights` (k, t), `intercept` (t,), `indices` (k,) of samples |
| `exact` | all n samples | `alpha` (n, t), `ones` (n,), `intercept` (t,), `inputs` (n, d) |

An exact one may leave its inputs in the training set's store, by reference; a fixed-size one needs no training set.
Two classes have t = 1 column of decisions, positive for the second; C > 2 classes have t = C, one against the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import (
    StoredArray,
    StoredType,
    create_array,
    default_chunk_rows,
    open_arrays,
    row_ranges,
)
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import commit
from dkgp.data.stores.model_store import SHOWN, ModelDescription, described, referenced_training_set, require_noise
from dkgp.data.stores.references import check_reference
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StoreError

__all__ = [
    "CLASSIFIER_KIND",
    "ClassifierForm",
    "ClassifierRecord",
    "open_classifier",
    "save_classifier",
]

CLASSIFIER_KIND = "classifier"
ClassifierForm = Literal["fixed-size", "exact"]

_JSON = ("class_weights", "calibration", "path")


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierRecord(ModelDescription):
    """A classifier as it is stored; picklable.

    Attributes
    ----------
    form
        "fixed-size" or "exact": which of the arrays there are.
    classes
        Names of the classes by code, two at least.
    intercept
        Shape (t,).
    prototypes, weights, indices
        Of a fixed-size one: standardised prototypes (k, d), weights (k, t), and which training samples they are, shape
        (k,), None where they are none.
    alpha, ones
        Of an exact one: coefficients (n, t), and the solution of Kbar x = 1, shape (n,), that error bounds take.
    by_reference, chunk_rows
        Of an exact one: whether the support inputs lie in the training set's store, and the rows of their chunks.
    class_weights
        Weight of each class by name; None where they weigh the same.
    calibration
        How decisions become probabilities, as JSON; None where there are none.
    path
        What was found on the way to the number of prototypes: a record of each.
    """

    form: ClassifierForm
    classes: tuple[str, ...]
    intercept: FloatArray
    prototypes: FloatArray | None = None
    weights: FloatArray | None = None
    indices: IntArray | None = None
    alpha: FloatArray | None = None
    ones: FloatArray | None = None
    by_reference: bool = False
    chunk_rows: int = 1
    class_weights: dict[str, float] | None = None
    calibration: Json | None = None
    path: list[Json] = field(default_factory=list)
    _support: StoredArray | Dataset | None = field(default=None, repr=False)

    @property
    def n_outputs(self) -> int:
        """Columns of decisions, t."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def n_support(self) -> int:
        """Number of points that a decision is a sum over: k prototypes, or n samples."""
        return len(self.coefficients)

    @property
    def coefficients(self) -> FloatArray:
        """Weights of the kernel's columns, (k, t) or (n, t)."""
        held = self.weights if self.form == "fixed-size" else self.alpha
        assert held is not None
        return held

    @property
    def reference(self) -> str:
        """Place of the support inputs, for an exact one by reference; "" for what carries them."""
        return self._support.url if isinstance(self._support, Dataset) else ""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points [start, stop) that decisions are sums over, shape (stop - start, d).

        Raises `StoreError` where a chunk is missing or damaged.
        """
        if self.prototypes is not None:
            return self.prototypes[start:stop]
        assert self._support is not None
        return (
            self._support.inputs(start, stop) if isinstance(self._support, Dataset) else self._support.read(start, stop)
        )


def save_classifier(
    url: Location,
    record: ClassifierRecord,
    *,
    dataset: Dataset | None = None,
    by_reference: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a classifier's store.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    record
        Written but for its own address, and where an exact one's inputs lie: `dataset` and `by_reference` say that.
    dataset
        The training set; an exact classifier needs it.
    by_reference
        Refer to the training set's store instead of copying its inputs. The model is then of use only as long as that
        store is where it is now, unchanged.
    overwrite
        Replace a classifier's store that is there. Anything else that is there is left alone.

    Raises
    ------
    InputError
        Arrays that do not fit each other, the classes or the training set; a noise variance that is not positive.
    NumericalError
        An array holds a NaN or infinity.
    OutputExistsError, StorageError
        The place is taken, or cannot be written to; what was written is removed.
    """
    arrays = _checked(record, dataset)
    require_noise(record.noise_variance)
    if by_reference:
        if record.form != "exact" or dataset is None:
            raise InputError("`by_reference` is of use with an exact classifier and its training set; leave it out.")
        check_reference(dataset.url)
    address = normalise_url(url)
    content: Json = {
        **record.described(),
        "form": record.form,
        "classes": list(record.classes),
        "by_reference": by_reference,
        "chunk_rows": record.chunk_rows if dataset is None else dataset.chunk_rows,
        **{name: getattr(record, name) for name in _JSON},
    }
    shown = {name: content[name] for name in (*SHOWN, "form", "classes")}
    with new_store(address, CLASSIFIER_KIND, shown, overwrite) as claim:
        written = []
        for name, values in arrays.items():
            dtype: StoredType = "int64" if name == "indices" else "float64"
            rows = default_chunk_rows(len(values), values.size // max(1, len(values)))
            written.append(create_array(address, name, values.shape, rows, _DIMENSIONS[name], dtype=dtype, claim=claim))
            written[-1].write(0, values)
        if record.form == "exact" and not by_reference:
            assert dataset is not None
            n, rows = dataset.n_samples, dataset.chunk_rows
            about = {"names": content["feature_names"], "scale": "standardised"}
            shape = (n, dataset.n_features)
            support = create_array(address, "inputs", shape, rows, ("sample", "feature"), about, claim=claim)
            for start, stop in row_ranges(n, rows):
                support.write(start, dataset.inputs(start, stop))
            written.append(support)
        commit(address, CLASSIFIER_KIND, content, written, claim)


def open_classifier(url: Location, *, reference: str | None = None) -> ClassifierRecord:
    """Open a classifier's store; an exact one's support inputs are read when they are asked for, all else at once.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    reference
        Where the training set lies that a model by reference has to name; as of `open_model`.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk; for a model by reference
        also a training set that is gone, has changed or may not be named.
    """
    address, content, arrays = open_arrays(url, CLASSIFIER_KIND)
    support: StoredArray | Dataset | None = arrays.pop("inputs", None)
    values: dict[str, Any] = {name: stored.read_as_stored(0, stored.shape[0]) for name, stored in arrays.items()}
    try:
        by_reference = bool(content["by_reference"])
        return ClassifierRecord(
            **described(address, content),
            form=content["form"],
            classes=tuple(content["classes"]),
            by_reference=by_reference,
            chunk_rows=int(content["chunk_rows"]),
            **{name: content[name] for name in _JSON},
            **values,
            _support=referenced_training_set(address, content, reference) if by_reference else support,
        )
    except (KeyError, TypeError) as error:
        raise StoreError(f"The manifest of '{address}' lacks {error}; save the model again.") from error


_DIMENSIONS = {
    "prototypes": ("basis", "feature"),
    "weights": ("basis", "output"),
    "indices": ("basis",),
    "alpha": ("sample", "output"),
    "ones": ("sample",),
    "intercept": ("output",),
}


def _checked(record: ClassifierRecord, dataset: Dataset | None) -> dict[str, NDArray[Any]]:
    """The arrays of a record as they are written, by name."""
    n_classes, t, d = len(record.classes), record.n_outputs, record.n_features
    if n_classes < 2 or len(set(record.classes)) < n_classes:
        raise InputError(f"A classifier needs two classes of different names at least; got {list(record.classes)}.")
    shapes: dict[str, tuple[int, ...]] = {"intercept": (t,)}
    if record.form == "fixed-size":
        if record.prototypes is None or record.weights is None:
            raise InputError("A fixed-size classifier needs 'prototypes' and 'weights'; got none.")
        k = len(record.prototypes)
        shapes |= {"prototypes": (k, d), "weights": (k, t)}
        shapes |= {} if record.indices is None else {"indices": (k,)}
    else:
        if record.alpha is None or record.ones is None or dataset is None:
            raise InputError("An exact classifier needs 'alpha', 'ones' and its training set; got none.")
        shapes |= {"alpha": (dataset.n_samples, t), "ones": (dataset.n_samples,)}
    arrays: dict[str, NDArray[Any]] = {}
    for name, shape in shapes.items():
        values = np.asarray(getattr(record, name))
        if values.shape != shape:
            raise InputError(f"'{name}' of the classifier has shape {values.shape}; expected {shape}.")
        if not np.isfinite(values).all():
            raise NumericalError(f"'{name}' of the classifier is not finite; the model is not saved.")
        arrays[name] = np.ascontiguousarray(values, dtype=np.int64 if name == "indices" else np.float64)
    return arrays
