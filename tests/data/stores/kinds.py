"""Every kind of store: how one is written over a data set, opened, and what it is to hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.data import (
    ClassifierRecord,
    Dataset,
    PredictionWriter,
    SparseRecord,
    dataset_from_arrays,
    open_classifier,
    open_dataset,
    open_linear_model,
    open_model,
    open_prediction,
    open_sparse_model,
    save_classifier,
    save_linear_model,
    save_model,
    save_sparse_model,
)
from dkgp.data.stores.manifest import MANIFEST_NAME, checksum
from dkgp.data.stores.models.classifier import FORMS, FixedSizeRecord
from dkgp.data.stores.models.model import about_model
from dkgp.data.stores.prediction_store import CLASS_VARIABLES

KERNEL = {"type": "rbf", "variance": 1.0, "gamma": [0.1, 0.2, 1 / 3]}
FACTS: dict[str, Any] = {
    "kernel": KERNEL,
    "noise_variance": 0.01,
    "history": [{"round": 1, "gradient_inf_norm": np.float64(0.5)}],
    "certificate": {"residual": [1e-9]},
    "summary": {"converged": True},
}
M = 12
CLASSES = ("<=50K", "größer, „viel“", "Élan vital")
LIKELIHOOD = {"name": "softmax", "n_classes": 3}
Arrays = dict[str, np.ndarray]


# --- records of models ------------------------------------------------------------------------------------------------


def sparse_record(dataset: Dataset, **changes: Any) -> SparseRecord:
    rng = np.random.default_rng(1)
    record = SparseRecord(
        **about_model(dataset, **FACTS),
        method="vfe",
        prototypes=dataset.inputs(0, M),
        weights=rng.standard_normal((M, 1)),
        lower=np.asfortranarray(np.tril(rng.standard_normal((M, M)))),
        normal=np.tril(rng.standard_normal((M, M))),
        indices=np.arange(M),
        basis_noise=rng.uniform(0.01, 0.1, M),
    )
    return replace(record, **changes)


def fixed_size(dataset: Dataset, **changes: Any) -> FixedSizeRecord:
    """Two classes, of M prototypes."""
    record = FixedSizeRecord(
        **about_model(dataset, **FACTS),
        classes=("no", "yes"),
        prototypes=dataset.inputs(0, M),
        weights=np.random.default_rng(1).standard_normal((M, 1)),
        intercept=np.array([1 / 3]),
        indices=np.arange(M),
        class_weights={"no": 0.5, "yes": 1.5},
        calibration={"slope": [1.5], "offset": [0.1]},
        path=[{"cardinality": 3, "score": 0.2, "std": 0.01}],
    )
    return replace(record, **changes)


def of_samples(dataset: Dataset, form: Any, **changes: Any) -> Any:
    """Three classes, of all samples: exact, logistic or a Gaussian process."""
    rng, n = np.random.default_rng(3), dataset.n_samples
    arrays = {"alpha": rng.standard_normal((n, 3)), "intercept": rng.standard_normal(3)}
    more = {"exact": {"ones": rng.standard_normal(n)}, "logistic": {}, "gp": {"curvature": rng.random((n, 3))}}[form]
    risk = {} if form == "exact" else {"likelihood": LIKELIHOOD, "regularisation": 0.25}
    about = about_model(dataset, **FACTS)
    kind: Any = FORMS[form, "samples"]
    record = kind(**about, classes=("a", "b", "c"), **arrays, **more, **risk)
    return replace(record, **changes)


def of_basis(dataset: Dataset, form: Any, **changes: Any) -> Any:
    """Three classes, of M prototypes: logistic or a Gaussian process, of softmax with one factor of all classes."""
    rng = np.random.default_rng(4)
    lower = {"kernel_lower": rng.random((M, M)), "posterior_lower": rng.random((1, 3 * M, 3 * M))}
    kind: Any = FORMS[form, "prototypes"]
    record = kind(
        **about_model(dataset, **FACTS),
        classes=("a", "b", "c"),
        prototypes=dataset.inputs(0, M),
        weights=rng.standard_normal((M, 3)),
        intercept=np.zeros(3),
        indices=np.arange(M),
        likelihood=LIKELIHOOD,
        regularisation=1.0,
        **(lower if form == "gp" else {}),
    )
    return replace(record, **changes)


def class_values(n: int, n_classes: int) -> Arrays:
    """Predictions of classes, every variable that there is of them."""
    rng = np.random.default_rng(n)
    t = 1 if n_classes == 2 else n_classes
    probability = rng.dirichlet(np.ones(n_classes), n)
    return {
        "decision": rng.normal(size=(n, t)),
        "decision_error_bound": rng.uniform(size=(n, t)),
        "probability": probability,
        "probability_lower": 0.5 * probability,
        "probability_upper": 0.5 + 0.5 * probability,
        "class": probability.argmax(axis=1),
        "certified": rng.uniform(size=n) < 0.5,
        "latent_variance_lower": rng.uniform(size=(n, t)),
        "latent_variance_upper": 1.0 + rng.uniform(size=(n, t)),
    }


def target_values(n: int, p: int) -> Arrays:
    rng = np.random.default_rng(n)
    return {name: rng.normal(size=(n, p)) for name in ("mean", "mean_error_bound", "variance")}


# --- the kinds --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoreKind:
    """A kind of store, of 1,000 samples of three features and one target.

    `write` takes address, data set and `overwrite` and returns the arrays that were written; `arrays` reads them back
    from what `open` returns. `chunk` is one of a store's objects, whose rows `open` or `arrays` reads; `dimensions` are
    those that xarray shows of some variables; `older` says which version this dkgp reads besides, and what the metadata
    have not in it.
    """

    kind: str
    write: Callable[..., Arrays]
    open: Callable[[str], Any]
    arrays: Callable[[Any], Arrays]
    chunk: str
    dimensions: dict[str, tuple[str, ...]]
    older: tuple[tuple[int, tuple[str, ...]], ...] = ()


def _fields(*names: str) -> Callable[[Any], Arrays]:
    return lambda record: {name: getattr(record, name) for name in names if getattr(record, name, None) is not None}


def _write_dataset(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
    raw = {"X": dataset.raw_inputs(0, 1000), "y": dataset.targets(0, 1000, standardised=False)}
    dataset_from_arrays(url, raw["X"], raw["y"], chunk_rows=300, overwrite=overwrite)
    return raw


def _write_labels(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
    raw = {"X": dataset.raw_inputs(0, 1000), "y": (np.arange(1000.0) % 3)[:, None]}
    dataset_from_arrays(url, raw["X"], raw["y"], chunk_rows=300, classes=CLASSES, overwrite=overwrite)
    return raw


def _read_dataset(dataset: Dataset) -> Arrays:
    return {"X": dataset.raw_inputs(0, 1000), "y": dataset.targets(0, 1000, standardised=False)}


def _exact(by_reference: bool, columns: int = 1) -> Callable[..., Arrays]:
    def write(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
        alpha, gradient = np.random.default_rng(3).normal(size=(2, 1000, columns))
        # The numbers of a mean are its own affair; a store counts its columns.
        facts = FACTS if columns == 1 else {**FACTS, "trend": {"coefficients": [[0.5]] * (columns - 1)}}
        save_model(
            url,
            alpha=alpha,
            gradient=gradient,
            dataset=dataset,
            by_reference=by_reference,
            overwrite=overwrite,
            **facts,
        )
        return {"alpha": alpha, "gradient": gradient, "inputs": dataset.inputs(0, 1000)}

    return write


def _read_exact(model: Any) -> Arrays:
    return {"alpha": model.alpha, "gradient": model.training_state()[1], "inputs": model.inputs(0, 1000)}


def _write_sparse(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
    record = sparse_record(dataset)
    save_sparse_model(url, record, overwrite=overwrite)
    return _SPARSE(record)


_SPARSE = _fields("prototypes", "weights", "lower", "normal", "indices", "basis_noise")
_CLASSIFIER = _fields(
    "prototypes",
    "weights",
    "indices",
    "alpha",
    "ones",
    "curvature",
    "kernel_lower",
    "posterior_lower",
    "intercept",
)


def _classifier(record: Callable[[Dataset], ClassifierRecord], by_reference: bool = False) -> Callable[..., Arrays]:
    def write(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
        classifier = record(dataset)
        training = {} if classifier.is_sparse else {"dataset": dataset, "by_reference": by_reference}
        save_classifier(url, classifier, overwrite=overwrite, **training)  # type: ignore[arg-type]
        return {**_CLASSIFIER(classifier), "inputs": dataset.inputs(0, classifier.n_support)}

    return write


def _read_classifier(record: ClassifierRecord) -> Arrays:
    return {**_CLASSIFIER(record), "inputs": record.inputs(0, record.n_support)}


def _write_linear(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
    arrays = {"coefficients": np.array([[1 / 3], [0.0], [-2.5]]), "intercept": np.array([0.1])}
    save_linear_model(url, dataset, arrays["coefficients"], arrays["intercept"], {"path": [1]}, overwrite=overwrite)
    return arrays


def _predictions(values: Arrays, classes: tuple[str, ...] | None = None) -> Callable[..., Arrays]:
    def write(url: str, dataset: Dataset, overwrite: bool = False) -> Arrays:
        writer = PredictionWriter.create(
            url, 1000, ["y"], tuple(values), 300, {"model": "abc"}, overwrite=overwrite, classes=classes
        )
        writer.write(0, **values)
        writer.commit()
        return {name: block.reshape(1000, -1) for name, block in values.items()}

    return write


def _read_predictions(prediction: Any) -> Arrays:
    return {name: prediction.read(name) for name in prediction.variables}


_SAMPLES = {"alpha": ("sample", "output"), "inputs": ("sample", "feature")}
_BASIS = {"prototypes": ("basis", "feature"), "weights": ("basis", "output"), "indices": ("basis",)}
KINDS = {
    "dataset": StoreKind(
        "dataset",
        _write_dataset,
        open_dataset,
        _read_dataset,
        "X/c/1/0",
        {"X": ("sample", "feature"), "y": ("sample",)},
        ((1, ("classes",)), (2, ()), (3, ())),
    ),
    "labels": StoreKind("dataset", _write_labels, open_dataset, _read_dataset, "y/c/2", {"y": ("sample",)}),
    "model": StoreKind(
        "model",
        _exact(False),
        open_model,
        _read_exact,
        "inputs/c/0/0",
        {"alpha": ("sample",), "gradient": ("sample",)},
        ((1, ()), (2, ())),
    ),
    "model with a mean": StoreKind(
        "model",
        _exact(False, 4),
        open_model,
        _read_exact,
        "alpha/c/0/0",
        {"alpha": ("sample", "column"), "gradient": ("sample", "column"), "targets": ("sample",)},
        ((3, ()),),
    ),
    "model by reference": StoreKind(
        "model", _exact(True), open_model, _read_exact, "alpha/c/0", {"alpha": ("sample",), "targets": ("sample",)}
    ),
    "sparse": StoreKind(
        "sparse model",
        _write_sparse,
        open_sparse_model,
        _SPARSE,
        "lower/c/0/0",
        {"lower": ("basis", "other"), "weights": ("basis", "target"), "basis_noise": ("basis",)},
        ((1, ()),),
    ),
    "linear": StoreKind(
        "linear model",
        _write_linear,
        open_linear_model,
        _fields("coefficients", "intercept"),
        "coefficients/c/0/0",
        {"coefficients": ("feature", "target"), "intercept": ("target",)},
        ((1, ()),),
    ),
    "fixed-size": StoreKind(
        "classifier",
        _classifier(fixed_size),
        open_classifier,
        _read_classifier,
        "weights/c/0/0",
        _BASIS,
        ((1, ("likelihood", "regularisation")), (2, ("neighbours", "search_samples"))),
    ),
    "prediction": StoreKind(
        "prediction",
        _predictions(target_values(1000, 1)),
        open_prediction,
        _read_predictions,
        "mean/c/2",
        {"mean": ("sample",), "variance": ("sample",)},
        ((1, ("classes",)), (2, ()), (3, ()), (4, ())),
    ),
    **{
        f"predictions of {count} classes": StoreKind(
            "prediction",
            _predictions(class_values(1000, count), CLASSES[:count]),
            open_prediction,
            _read_predictions,
            "probability/c/1/0",
            {
                "probability": ("sample", "class_name"),
                "decision": ("sample",) if count == 2 else ("sample", "class_name"),
                "class": ("sample",),
            },
        )
        for count in (2, 3)
    },
    **{
        f"{form} of all samples{', by reference' if by_reference else ''}": StoreKind(
            "classifier",
            _classifier(lambda dataset, form=form: of_samples(dataset, form), by_reference),  # type: ignore[misc]
            open_classifier,
            _read_classifier,
            "alpha/c/0/0",
            {"alpha": ("sample", "output")} if by_reference else _SAMPLES,
        )
        for form in ("exact", "logistic", "gp")
        for by_reference in (False, True)
    },
    **{
        f"{form} of a basis": StoreKind(
            "classifier",
            _classifier(lambda dataset, form=form: of_basis(dataset, form)),  # type: ignore[misc]
            open_classifier,
            _read_classifier,
            "prototypes/c/0/0",
            {} if form == "gp" else _BASIS,  # one factor of all classes shares no dimension with the rest
        )
        for form in ("logistic", "gp")
    },
}
# One of each kind: where forms of a kind do not differ.
DISTINCT = {store.kind: store for store in reversed(KINDS.values())}
assert set(CLASS_VARIABLES) == set(class_values(2, 2))


def rewrite_manifest(url: str | Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a store's manifest, and have its checksum agree."""
    path = Path(url) / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    change(manifest)
    manifest["checksum"] = checksum(manifest)
    path.write_text(json.dumps(manifest))
