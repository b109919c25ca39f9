"""`--warm-start`: what a solve starts from, of an exact model or a sparse one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dkgp.codec import difference
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import ClassifierRecord, Dataset, ModelRecord, open_any_model
from dkgp.data.stores.models.regression import SparseRecord
from dkgp.errors import InputError
from dkgp.models import Hyperparameters
from dkgp.models.problem import stored_identity
from dkgp.models.trend import CENTRED, mean_kind
from dkgp.operators.base import FloatArray


@dataclass(frozen=True)
class Start:
    """Coefficients (n, p), and their gradient where it is known; None for a start from zero."""

    alpha: FloatArray | None = None
    gradient: FloatArray | None = None


def warm_start(
    url: str, dataset: Dataset, hyperparameters: Hyperparameters, identity: Mapping[str, Any], reporter: Reporter
) -> Start:
    """Start from the model at `url`; its gradient, where it knows it, saves a float64 product.

    From zero, where that takes less time than from a sparse model; the reporter is told. Raises `InputError` where the
    model is of other samples, or a classifier.
    """
    model = open_any_model(url)
    if model.kind == ClassifierRecord.kind:
        raise InputError(
            f"'{url}' is a classifier, whose coefficients are no regression's; a warm start needs a model of the same "
            "targets. Leave `warm_start` out, or name such a model"
        )
    if model.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the model '{url}' was trained on other data than '{dataset.url}'; a warm start needs a model of the same "
            "samples. Leave `warm_start` out, or name such a model"
        )
    mean = identity.get("mean", CENTRED)
    its_mean = mean_kind(model.trend)
    if its_mean != mean:
        raise InputError(
            f"the model '{url}' has the mean {its_mean}, and this run {mean}; a warm start needs as many right-hand "
            f"sides. Leave `warm_start` out, or train with `mean` {its_mean}"
        )
    start = _STARTS[model.kind]
    return start(model, dataset, hyperparameters, identity, reporter)


def _exact_start(
    model: ModelRecord,
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    identity: Mapping[str, Any],
    reporter: Reporter,
) -> Start:
    """Start from an exact model's coefficients, and from its gradient if its hyperparameters are this run's."""
    state = model.training_state() if difference(stored_identity(model), identity) is None else None
    return Start(model.alpha, None if state is None else state[1])


def _sparse_start(
    model: SparseRecord,
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    identity: Mapping[str, Any],
    reporter: Reporter,
) -> Start:
    """Start from a sparse model's residual over the noise, if its hyperparameters are this run's and it pays."""
    made = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    if difference(made, {name: identity[name] for name in made}) is not None:
        reporter.warn(
            f"the sparse model '{model.url}' has other hyperparameters than this run: its residual says nothing of the "
            "solution, and the solve starts from zero. Choose a sparse model of the same ones, or an exact model"
        )
        return Start()
    kernel, noise_variance = hyperparameters.kernel, hyperparameters.noise_variance
    # Loaded where a sparse model is named: most runs name none.
    from dkgp.models.sparse.stored import opened_sparse, start_from_sparse

    start = start_from_sparse(dataset, opened_sparse(model), kernel, noise_variance)
    shares = ", ".join(f"{100.0 * share:.3g} %" for share in start.share)
    gain = (
        f"the residual of {model.basis_size:,} basis samples leaves {shares} of the way from zero to the solution's "
        f"objective, by {start.rows:,} rows of a product"
    )
    if start.alpha is None:
        reporter.note(f"the sparse model is no start: {gain}; the solve starts from zero, and saves its product")
    else:
        reporter.note(f"the solve starts from the sparse model, which takes one product in float64: {gain}")
    return Start(start.alpha)


_STARTS: dict[str, Callable[[Any, Dataset, Hyperparameters, Mapping[str, Any], Reporter], Start]] = {
    ModelRecord.kind: _exact_start,
    SparseRecord.kind: _sparse_start,
}
