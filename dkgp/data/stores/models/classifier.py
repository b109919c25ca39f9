"""Classifiers in a Zarr store: classes, decisions and what makes probabilities of them, in one of several forms.

| form | decisions are sums over | arrays, beside `intercept` (t,) |
|---|---|---|
| `fixed-size` | m prototypes | `prototypes` (m, d), `weights` (m, t), `indices` (m,) of samples |
| `exact` | all n samples | `alpha` (n, t), `ones` (n,), `inputs` (n, d) |
| `logistic`, `gp` | all n samples | `alpha` (n, t), `inputs` (n, d); of `gp` also `curvature` (n, t) |
| `logistic`, `gp` | m prototypes | as `fixed-size`; of `gp` also `kernel_lower` (m, m), `posterior_lower` (t, m, m) |
| `gp` | m prototypes, neighbours | as `fixed-size`, `kernel_lower` (m, m), and those of `NearArrays` by column |

Of one with neighbours `weights` are of the basis' part alone, and all samples are in its store. One of all samples may
leave its inputs in the training set's store, by reference; one of prototypes needs no training set. Two classes have t
= 1 column of decisions, positive for the second; C > 2 classes have t = C, one each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray, open_arrays
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import described_whole, texts
from dkgp.data.stores.models.description import (
    SHOWN,
    SupportedDescription,
    checked_arrays,
    read_arrays,
    require_noise,
    require_shapes,
    write_inputs,
)
from dkgp.data.stores.models.near import NEAR_BY_TARGET, NEAR_COUNTS, NearArrays, shapes_by_target
from dkgp.data.stores.models.references import check_reference, referenced_training_set
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError

CLASSIFIER_KIND = "classifier"
ClassifierForm = Literal["fixed-size", "exact", "logistic", "gp"]

_JSON = ("class_weights", "calibration", "path")


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierRecord(NearArrays, SupportedDescription):
    """A classifier as it is stored; picklable.

    Attributes
    ----------
    form
        "fixed-size", "exact", "logistic" or "gp": which of the arrays there are.
    classes
        Names of the classes by code, two at least.
    intercept
        Shape (t,).
    prototypes, weights, indices
        Of one that `is_sparse`: standardised prototypes (m, d), weights (m, t), and which training samples they are,
        shape (m,), None where they are none.
    alpha
        Of one of all samples: coefficients (n, t).
    ones
        Of an exact one: the solution of Kbar x = 1, shape (n,), that error bounds take.
    curvature
        Of a Gaussian process of all samples: W at the mode, (n, t), none below zero.
    kernel_lower, posterior_lower
        Of a Gaussian process of prototypes: lower factors of K_mm and its jitter, (m, m), and of I + F'W F, (t, m, m);
        with softmax, whose columns hang together, (1, t m, t m); none with neighbours.
    likelihood, regularisation
        Of a logistic one or a Gaussian process: the likelihood as JSON, and lambda.
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
    curvature: FloatArray | None = None
    kernel_lower: FloatArray | None = None
    posterior_lower: FloatArray | None = None
    likelihood: Json | None = None
    regularisation: float | None = None
    class_weights: dict[str, float] | None = None
    calibration: Json | None = None
    path: list[Json] = field(default_factory=list)

    @property
    def n_outputs(self) -> int:
        """Columns of decisions, t."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def is_sparse(self) -> bool:
        """True for a model of prototypes, which needs no training set."""
        return self.prototypes is not None

    @property
    def n_support(self) -> int:
        """Number of points that a decision is a sum over: m prototypes, or n samples."""
        return len(self.coefficients)

    @property
    def coefficients(self) -> FloatArray:
        """Weights of the kernel's columns, (m, t) or (n, t)."""
        held = self.weights if self.is_sparse else self.alpha
        assert held is not None
        return held

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points [start, stop) that decisions are sums over, shape (stop - start, d).

        Raises `StoreError` where a chunk is missing or damaged.
        """
        return super().inputs(start, stop) if self.prototypes is None else self.prototypes[start:stop]


def save_classifier(
    url: Location,
    record: ClassifierRecord,
    *,
    dataset: Dataset | None = None,
    by_reference: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a classifier's store; places, references and errors as of `save_model`.

    Parameters
    ----------
    record
        Written but for its own address, and where the inputs of one of all samples lie: `dataset` and `by_reference`
        say that.
    dataset
        The training set; a classifier of all samples needs it.

    Raises
    ------
    InputError
        Arrays that do not fit each other, the classes or the training set; a noise variance that is not positive.
    NumericalError
        An array holds a NaN or infinity.
    """
    _check_classes(record)
    arrays = checked_arrays(record, _shapes(record, dataset), "the classifier")
    require_noise(record.noise_variance)
    if by_reference:
        if record.is_sparse or dataset is None:
            raise InputError(
                "`by_reference` is of use with a classifier of all samples and its training set; leave it out."
            )
        check_reference(dataset.url)
    content: Json = {
        **record.described(),
        "form": record.form,
        "classes": list(record.classes),
        "by_reference": by_reference,
        **{name: value for name in NEAR_COUNTS if (value := getattr(record, name)) is not None},
        "chunk_rows": record.chunk_rows if dataset is None else dataset.chunk_rows,
        **{name: getattr(record, name) for name in (*_JSON, "likelihood", "regularisation")},
    }
    shown = {name: content[name] for name in (*SHOWN, "form", "classes")}
    # Who knows no neighbours would take the basis' weights for all there is.
    version = 2 if record.neighbours is None else None
    with new_store(normalise_url(url), CLASSIFIER_KIND, shown, overwrite, version) as store:
        for name, values in arrays.items():
            store.write_array(name, values, _DIMENSIONS[name])
        if not record.is_sparse and not by_reference:
            assert dataset is not None
            write_inputs(store, dataset, dataset.chunk_rows)
        store.commit(content)


def open_classifier(url: Location, *, reference: str | None = None) -> ClassifierRecord:
    """Open a classifier's store; support inputs of all samples are read when they are asked for, all else at once.

    Reference and errors as of `open_model`.
    """
    address, content, arrays = open_arrays(url, CLASSIFIER_KIND)
    with described_whole(address, "save the model again"):
        described, classes = ClassifierRecord.description_in(address, content), texts(content["classes"])
        shapes = _shapes_read(arrays, len(described["feature_names"]), len(classes))
        require_shapes(address, arrays, shapes, ("intercept",))
        support: StoredArray | Dataset | None = arrays.pop("inputs", None)
        by_reference = bool(content["by_reference"])
        if content["form"] not in get_args(ClassifierForm) or not (by_reference or support or "prototypes" in arrays):
            raise ValueError(f"the form {content['form']!r} and the arrays {', '.join(arrays)}")
        described |= {
            "form": content["form"],
            "classes": classes,
            "by_reference": by_reference,
            "chunk_rows": int(content["chunk_rows"]),
            **{name: content[name] for name in _JSON},
            # Not in stores of format 1.
            "likelihood": content.get("likelihood"),
            "regularisation": content.get("regularisation"),
            **{name: int(content[name]) for name in NEAR_COUNTS if name in content},
        }
    if by_reference:
        support = referenced_training_set(address, content, reference)
    return ClassifierRecord(**described, **read_arrays(arrays), _support=support)


_DIMENSIONS = {
    "prototypes": ("basis", "feature"),
    "weights": ("basis", "output"),
    "indices": ("basis",),
    "alpha": ("sample", "output"),
    "ones": ("sample",),
    "curvature": ("sample", "output"),
    "kernel_lower": ("basis", "column"),
    "posterior_lower": ("output", "basis", "column"),
    "intercept": ("output",),
    **NEAR_BY_TARGET,
}


def _shapes_read(arrays: Mapping[str, StoredArray], d: int, n_classes: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays that a classifier of so many features and classes may have, by the points of its sums."""
    t = 1 if n_classes == 2 else n_classes
    n = arrays["weights" if "weights" in arrays else "alpha"].shape[0]
    samples, landmarks = (arrays[name].shape[0] if name in arrays else 0 for name in ("near_inputs", "near_embedding"))
    whole = arrays["posterior_lower"].shape == (1, t * n, t * n) if "posterior_lower" in arrays else False
    return {
        "intercept": (t,),
        **dict.fromkeys(("prototypes", "inputs"), (n, d)),
        **dict.fromkeys(("weights", "alpha", "curvature"), (n, t)),
        **dict.fromkeys(("indices", "ones"), (n,)),
        "kernel_lower": (n, n),
        "posterior_lower": (1, t * n, t * n) if whole else (t, n, n),
        **shapes_by_target(n, d, t, samples, landmarks),
    }


def _check_classes(record: ClassifierRecord) -> None:
    n_classes = len(record.classes)
    if n_classes < 2 or len(set(record.classes)) < n_classes:
        raise InputError(f"A classifier needs two classes of different names at least; got {list(record.classes)}.")
    if record.form in ("logistic", "gp"):
        _require_likelihood(record)


def _shapes(record: ClassifierRecord, dataset: Dataset | None) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays that a record of its form has."""
    t, d = record.n_outputs, record.n_features
    shapes: dict[str, tuple[int, ...]] = {"intercept": (t,)}
    if record.form == "fixed-size" or (record.form != "exact" and record.is_sparse):
        more = ("kernel_lower", "posterior_lower") if record.form == "gp" and record.neighbours is None else ()
        _require(record, f"A {record.form} classifier", "prototypes", "weights", *more)
        m = len(record.coefficients)
        shapes |= {"prototypes": (m, d), "weights": (m, t)}
        shapes |= {} if record.indices is None else {"indices": (m,)}
        if record.neighbours is not None:
            needed = ("kernel_lower", *(name for name in NEAR_BY_TARGET if name != "near_embedding"))
            _require(record, "A classifier with neighbours", *needed)
            n, e = (0 if values is None else len(values) for values in (record.near_inputs, record.near_embedding))
            near = shapes_by_target(m, d, t, n, e) | {"kernel_lower": (m, m)}
            return shapes | {name: shape for name, shape in near.items() if getattr(record, name) is not None}
        if more:
            together = record.likelihood is not None and record.likelihood["name"] == "softmax"
            shapes |= {"kernel_lower": (m, m), "posterior_lower": (1, t * m, t * m) if together else (t, m, m)}
        return shapes
    article = "An exact classifier" if record.form == "exact" else f"A {record.form} classifier of all samples"
    column = {"exact": ("ones",), "gp": ("curvature",)}.get(record.form, ())
    names = _require(record, article, "alpha", *column, training=True, dataset=dataset)
    assert dataset is not None
    n = dataset.n_samples
    return shapes | {name: (n,) if name == "ones" else (n, t) for name in names}


def _require(
    record: ClassifierRecord, model: str, *names: str, training: bool = False, dataset: Dataset | None = None
) -> tuple[str, ...]:
    if any(getattr(record, name) is None for name in names) or (training and dataset is None):
        needed = [f"'{name}'" for name in names] + (["its training set"] if training else [])
        raise InputError(f"{model} needs {', '.join(needed[:-1])} and {needed[-1]}; got none.")
    return names


def _require_likelihood(record: ClassifierRecord) -> None:
    if record.likelihood is None or record.regularisation is None:
        raise InputError(f"A {record.form} classifier needs 'likelihood' and 'regularisation'; got none.")
    if not (np.isfinite(record.regularisation) and record.regularisation > 0.0):
        raise InputError(f"The regularisation must be finite and positive; got {record.regularisation}.")
    if record.curvature is not None and (np.asarray(record.curvature) < 0.0).any():
        raise NumericalError("'curvature' of the classifier is below zero; the model is not saved.")
