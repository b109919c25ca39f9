"""`dkgp info`: describe a store, a checkpoint, a hyperparameter file, or, without a path, the installation."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any

import numpy as np
import psutil

from dkgp import __version__
from dkgp.cluster.options import cluster_kinds
from dkgp.cluster.threads import available_cores
from dkgp.codec import to_json
from dkgp.commands.recipe import command
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import (
    LINEAR_MODEL_KIND,
    CheckpointStore,
    ClassifierRecord,
    ModelRecord,
    Prediction,
    SparseRecord,
    open_classifier,
    open_dataset,
    open_factor,
    open_linear_model,
    open_model,
    open_prediction,
    open_sparse_model,
    recognise,
)
from dkgp.data.remote.storage import exists, is_file, list_object_bytes, normalise_url, open_object
from dkgp.data.sources.formats import formats
from dkgp.data.stores.models.model import KernelModel
from dkgp.errors import InputError, StoreError
from dkgp.kernels import kernel_from_json
from dkgp.models import read_hyperparameters
from dkgp.registry import Extra, Option

PACKAGES = ("numpy", "scipy", "numba", "zarr", "xarray", "dask", "distributed")
# Extras other than those of source formats and cluster kinds, which declare their own.
EXTRAS = (
    Extra("plot", "matplotlib", "matplotlib"),
    Extra("dashboard", "bokeh", "bokeh"),
    Extra("s3", "s3fs", "s3fs"),
    Extra("gcs", "gcsfs", "gcsfs"),
    Extra("azure", "adlfs", "adlfs"),
)


@command("", "dkgp info model.zarr --json", "dkgp info")
@dataclass(frozen=True)
class InfoJob:
    """A path or URL to describe, or None for the installation."""

    location: Annotated[str | None, Option(place="read", argument=True)] = None


def run_info(job: InfoJob, reporter: Reporter) -> Document:
    """Describe a path or the installation; `InputError` if the path holds nothing that dkgp recognises."""
    if job.location is None:
        return {"command": "info", "kind": "installation", **_installation()}
    url = normalise_url(job.location)
    if not exists(url):
        raise InputError(f"There is no file or folder at '{url}'. Check the path.")
    if is_file(url):
        if any(url.lower().endswith(suffix) for form in formats() for suffix in form.suffixes):
            open_dataset(url)  # the refusal names the command that builds a store from a table
        with open_object(url) as file:
            if file.read(1) not in b"{ \n":
                raise _unknown(url)
        content: Document = {"kind": "hyperparameters", **read_hyperparameters(url).to_json()}
    else:
        content = _store(url)
    document: dict[str, Any] = plain({"command": "info", "location": url, **content})
    return document


def _installation() -> Document:
    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": available_cores(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "memory_available_bytes": available_bytes(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "extras": {extra.name: extra.is_there() for extra in (*EXTRAS, *_declared_extras())},
    }


def _declared_extras() -> list[Extra]:
    extras = [form.extra for form in formats()] + [kind.extra for kind in cluster_kinds()]
    return [extra for extra in extras if extra is not None]


def _store(url: str) -> Document:
    describe = _KINDS.get(recognise(url) or "", _checkpoint)
    return describe(url)


def _bytes(url: str) -> int:
    return sum(list_object_bytes(url).values())


def _dataset(url: str) -> Document:
    dataset = open_dataset(url)
    return {
        "kind": "dataset",
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "p": dataset.n_targets,
        "features": dataset.feature_names,
        "dropped_features": [
            name
            for name, kept in zip(dataset.raw_feature_names, dataset.standardisation.kept, strict=True)
            if not kept and name not in dataset.covariate_names
        ],
        **({"covariates": list(dataset.covariate_names)} if dataset.covariate_names else {}),
        "targets": dataset.target_names,
        **({"transforms": to_json(dataset.standardisation.transforms)} if dataset.standardisation.transforms else {}),
        **(
            {}
            if dataset.classes is None
            else {"classes": dict(zip(dataset.classes, dataset.class_counts or (), strict=True))}
        ),
        **({} if dataset.weight_name is None else {"weights": dataset.weight_name}),
        **({} if dataset.noise_name is None else {"noise": dataset.noise_name}),
        **({"ids": list(dataset.id_names)} if dataset.id_names else {}),
        "chunk_rows": dataset.chunk_rows,
        "fingerprint": dataset.fingerprint,
        "stored_bytes": _bytes(url),
    }


def _described(model: KernelModel) -> Document:
    """Describe the fields that all kernel models share."""
    return {
        "d": model.n_features,
        "p": model.n_targets,
        "features": model.feature_names,
        **({"covariates": list(covariates)} if (covariates := model.standardisation.covariate_names) else {}),
        "targets": model.target_names,
        "kernel": model.kernel,
        "noise_variance": model.noise_variance,
    }


def _trained(model: KernelModel) -> Document:
    """Describe training, certificates and size of a model."""
    return {
        "fingerprint": model.fingerprint,
        "rounds": len(model.history),
        "summary": model.summary,
        "certificate": model.certificate,
        "versions": model.versions,
        "stored_bytes": _bytes(model.url),
    }


def _known_noise(model: ModelRecord) -> Document:
    """Return the range of the samples' known noise, standardised; an empty document if the model has none."""
    if model.sample_noise is None:
        return {}
    law = {} if model.noise_model is None else {"noise_model": model.noise_model["kind"]}
    return {"sample_noise": {"least": float(model.sample_noise.min()), "most": float(model.sample_noise.max())}, **law}


def _linear(url: str) -> Document:
    model = open_linear_model(url)
    return {
        "kind": LINEAR_MODEL_KIND,
        **model.summary,
        "features": model.feature_names,
        "fingerprint": model.fingerprint,
        "versions": model.versions,
        "stored_bytes": _bytes(url),
    }


def _classifier(url: str) -> Document:
    """Describe the classes and the expansion points of the decision function."""
    model = open_classifier(url)
    return {
        "kind": model.kind,
        "method": model.form,
        "classes": model.classes,
        "n": model.summary.get("n"),
        "basis_size": model.n_support if model.is_sparse else None,
        "neighbours": model.neighbours,
        "by_reference": model.by_reference,
        "intercept": model.intercept,
        "class_weights": model.class_weights,
        "probabilities": model.calibration is not None or model.likelihood is not None,
        "likelihood": model.likelihood,
        "regularisation": model.regularisation,
        "path": model.path,
        **_described(model),
        **_trained(model),
    }


def _exact(url: str) -> Document:
    model = open_model(url)
    own = {"kind": model.kind, "n": model.n_samples, "by_reference": model.by_reference}
    own["prior_variance"] = kernel_from_json(model.kernel).prior_variance(model.n_features)
    trained, about = _trained(model), (model.summary.get("estimator") or {}).get("kriging")
    if about is not None:
        own["kriging"] = _kriged(about)
        trained["summary"] = {name: value for name, value in model.summary.items() if name != "estimator"}
    return {**own, **_described(model), **_known_noise(model), **trained, **_factor(url, model.fingerprint)}


def _kriged(about: Document) -> Document:
    """Describe a kriged field, in map units and in units of the target."""
    crs = about["space"]["crs"]
    return {
        "kind": about["settings"]["kind"],
        "variogram": about["variogram"],
        "drift": about["mean"],
        "quantity": about["of"],
        "crs": None if crs is None else crs.split('"')[1],  # WKT begins with the name
        "distances": about["space"]["metric"],
        "region": about["region"],
        "n_merged": about["n_merged"],
    }


def _sparse(url: str) -> Document:
    """Describe the basis and the certificates, both standardised and in the targets' units."""
    model = open_sparse_model(url)
    proven = model.certificate
    evidence = proven["evidence"] or dict.fromkeys(("lower", "upper", "divergence"))
    bound = np.asarray(proven["rms_bound"])
    return {
        "kind": model.kind,
        "n": proven["n"],
        "method": model.method,
        "basis": model.summary.get("basis", "given"),
        "basis_size": model.basis_size,
        "noise_by_sample": model.basis_noise is not None or "noise_by_sample" in model.summary,
        "rms_bound": bound,
        "rms_bound_raw": bound * model.standardisation.target_std,
        "best": proven["best"],
        "gap": proven["gap"],
        "elbo": evidence["lower"],
        "evidence_upper": evidence["upper"],
        "divergence": evidence["divergence"],
        "last_round": model.history[-1] if model.history else None,
        **_described(model),
        **_trained(model),
    }


def _factor(url: str, fingerprint: str) -> Document:
    """Describe the factor stored with a model. The model works without it, so damage is reported, not raised."""
    try:
        factor = open_factor(url, fingerprint=fingerprint)
    except StoreError as error:
        return {"variance_factor": {"damaged": str(error)}, "variance_factor_bytes": None}
    if factor is None:
        return {"variance_factor": None, "variance_factor_bytes": 0}
    figures = {name: value for name, value in factor.metadata.items() if isinstance(value, str | int | float)}
    # The model already contains the fingerprint and the noise variance.
    settings = {name: value for name, value in figures.items() if name not in ("fingerprint", "noise_variance", "rank")}
    return {"variance_factor": {"rank": factor.rank, **settings}, "variance_factor_bytes": _bytes(factor.url)}


def _prediction(url: str) -> Document:
    prediction = open_prediction(url)
    return {
        "kind": "prediction",
        "n": prediction.n_samples,
        "targets": prediction.target_names,
        "variables": prediction.variables,
        **_decided(prediction),
        "chunk_rows": prediction.chunk_rows,
        "attributes": prediction.attributes,
        "stored_bytes": _bytes(url),
    }


def _decided(prediction: Prediction) -> Document:
    """Return the number of samples predicted per class and the proven share of them; empty without classes."""
    if prediction.classes is None:
        return {}
    document: Document = {"classes": prediction.classes}
    chunks = prediction.row_chunks()
    if "class" in prediction.variables:
        counts = sum(np.bincount(prediction.labels(*rows), minlength=len(prediction.classes)) for rows in chunks)
        document["classes"] = dict(zip(prediction.classes, np.asarray(counts).tolist(), strict=True))
    if "certified" in prediction.variables:
        certified = sum(int(prediction.certified(*rows).sum()) for rows in chunks)
        document["certified_share"] = certified / prediction.n_samples
    return document


def _unknown(url: str) -> InputError:
    return InputError(
        f"'{url}' is neither a dataset, model or prediction store, nor a checkpoint or hyperparameter file of dkgp. "
        "Give the path of one"
    )


def _checkpoint(url: str) -> Document:
    checkpoint = CheckpointStore(url).load_latest()
    if checkpoint is None:
        raise _unknown(url)
    history: list[dict[str, Any]] = checkpoint.metadata.get("loop", {}).get("history", [])
    return {
        "kind": "checkpoint",
        "iteration": checkpoint.sequence_number,
        "solver": checkpoint.metadata.get("solver"),
        "arrays": {name: list(values.shape) for name, values in checkpoint.arrays.items()},
        "last_round": history[-1] if history else None,
        "damaged": checkpoint.skipped,
        "stored_bytes": _bytes(url),
    }


_KINDS: dict[str, Callable[[str], Document]] = {
    "dataset": _dataset,
    ModelRecord.kind: _exact,
    SparseRecord.kind: _sparse,
    ClassifierRecord.kind: _classifier,
    LINEAR_MODEL_KIND: _linear,
    "prediction": _prediction,
}
