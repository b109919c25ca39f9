"""Stored sparse models: written, opened, taken as a start of the exact solve, and updated with new samples.

A start of the exact solve is the residual over the noise, if its objective lies below that of zero. The exact alpha is
D (y - f*) for the exact mean f*, so a sparse mean f stands for alpha_0 = D (y - f). Its error is D (f* - f), and the
objective a' Kbar a / 2 - y'a counts that times Kbar D: a good fit of a smooth kernel is nearly the solution. On a rough
one no basis of that size follows f*, and alpha_0 lies farther off than zero does: it would cost products, and is not
taken. The sign of the objective decides; the rows of the product at a random part of the samples estimate it.

(The weights of the basis, placed on the basis samples, were tried, too: they saved no products anywhere.)

An update adds new samples without the old ones. I + F'DF and F'D y are sums over samples: those of the old ones are in
the model, C C' and C C' z, and those of the new ones are added. The basis stays, and so do kernel, noise and
standardisation; the weights are those of a fit to all samples.

The proof is carried on without the old samples. Twice the risk is a squared length, of (y - f) and f
together, so over the old samples it grows from f to the updated f + delta to no more than

    (sqrt(2 R(f)) + |delta|)^2,    |delta|^2 = delta' (I + F'DF) delta  <=  |C' delta|^2 + h |delta|^2

with delta in whitened form, however the new weights were found; the new samples' part of the risk is evaluated. The
least risk of all is never below that of the old samples alone, which has known lower bounds. Neither is tight for
long: once the new samples are many, training again with this basis proves more.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import to_json
from dkgp.data import Dataset, SparseRecord, open_sparse_model, save_sparse_model
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.model import about_model
from dkgp.data.types import Location
from dkgp.errors import InputError
from dkgp.kernels import Kernel, fold_white, kernel_from_json
from dkgp.models.noise import Noise
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.sparse.bounds import (
    Points,
    SampleErrors,
    highest_misfit,
    highest_whitened_penalty,
    largest_residual_diagonal,
)
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.model import SparseModel, VarianceInterval, interval_of, method_named, normal_factor
from dkgp.models.sparse.near import Near, NearPredictor, near_fields, near_of
from dkgp.models.sparse.train import TrainedSparse
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, column_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.tasks import piece_rows
from dkgp.operators.low_rank.pivots import solve_by_factor, whiten


@dataclass(frozen=True)
class OpenedSparse:
    """A stored sparse model, ready to predict on the standardised scale."""

    record: SparseRecord
    model: SparseModel
    certificate: SparseCertificate
    near: Near | None = None  # of a model with neighbours

    @cached_property
    def near_predictor(self) -> NearPredictor | None:
        """Predictor of a model with neighbours, which values and gradients share; None for other models."""
        model, near = self.model, self.near
        return None if near is None else NearPredictor(model.kernel, model.prototypes, model.lower, near)

    def interval(self) -> VarianceInterval:
        """The proven interval of the exact variance; a few m^3 multiply-adds."""
        record = self.record
        noise = record.noise_variance if record.basis_noise is None else record.basis_noise
        return interval_of(self.model, None if record.indices is None else noise, self.certificate.normal_share)


def sparse_record(trained: TrainedSparse, dataset: Dataset) -> SparseRecord:
    """Describe a trained sparse model as a store has it; nothing is written, and its address is empty."""
    model = trained.model
    about = about_model(
        dataset,
        kernel=model.kernel.to_json(),
        noise_variance=trained.noise_variance,
        history=[] if trained.greedy is None else to_json(trained.greedy.history),
        certificate=trained.certificate.to_json(),
        summary=trained.summary,
    )
    return SparseRecord(
        **about,
        method=model.method.name,
        prototypes=model.prototypes,
        weights=model.weights,
        lower=model.lower,
        normal=model.normal,
        indices=trained.basis.indices,
        basis_noise=trained.basis_noise,
        **({} if trained.near is None else near_fields(trained.near)),
    )


def _near(record: SparseRecord) -> Near | None:
    """The neighbours of a record, and those of its method alone; `ValueError` where something is missing."""
    return near_of(record, record.noise_variance) if method_named(record.method).neighbours else None


def save_sparse(trained: TrainedSparse, url: Location, dataset: Dataset, *, overwrite: bool = False) -> None:
    """Write a trained sparse model to a store of its own; errors as of `save_sparse_model`."""
    save_sparse_model(url, sparse_record(trained, dataset), overwrite=overwrite)


def opened_sparse(record: SparseRecord) -> OpenedSparse:
    """Make a model of its record.

    Raises `InputError`: a method that this dkgp does not know.
    """
    model = SparseModel(
        method_named(record.method),
        kernel_from_json(record.kernel),
        record.prototypes,
        record.weights,
        np.asfortranarray(record.lower),
        None if record.normal is None else np.asfortranarray(record.normal),
    )
    with described_whole(record.url, "train again"):
        return OpenedSparse(record, model, SparseCertificate.from_json(record.certificate), _near(record))


def open_sparse(url: Location) -> OpenedSparse:
    """Open a stored sparse model; errors as of `open_sparse_model` and `opened_sparse`."""
    return opened_sparse(open_sparse_model(url))


# Rows of the product that the objective is estimated by: of residuals with far outliers, to a fifth or so.
ROWS = 2048
FEW_ROWS = 512


@dataclass(frozen=True)
class SparseStart:
    """A start of the exact solve."""

    alpha: FloatArray | None  # (n, p): zero for targets whose residual does not pay; None where that is all of them
    # (p,): the part of the way from zero to the least objective that the start leaves, at most, up to sampling: 0 means
    # solved, 1 no better than zero, more is worse
    share: FloatArray
    rows: int  # of the product that this was estimated by

    @property
    def pays(self) -> FloatArray:
        """True for targets that start from the residual: (p,)."""
        return np.asarray(self.share < 1.0)


def residual_start(
    operator: BlockedKernelOperator, targets: FloatArray, model: SparseModel, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """alpha_0 of a fit, (n, p), and an estimate of the bound on min R that a product with it would prove: (p,)."""
    noise, n = operator.noise, operator.n
    residual = targets - CrossKernel(operator, model.prototypes).columns(model.weights)
    alpha = residual / column_of(noise)
    rows = np.sort(np.random.default_rng(seed).choice(n, min(n, FEW_ROWS), replace=False)).astype(np.intp)
    images = CrossKernel(operator, operator.inputs(rows)).project(alpha) + residual[rows]
    quadratic = n / len(rows) * np.einsum("rp,rp->p", alpha[rows], images)
    product = np.einsum("np,np->p", alpha, targets)
    # At the best multiple, as it would be proven.
    return alpha, np.asarray(0.5 * product**2 / np.maximum(quadratic, np.finfo(float).tiny))


def start_from_sparse(
    dataset: Dataset, opened: OpenedSparse, kernel: Kernel, noise_variance: float, *, seed: int = 0
) -> SparseStart:
    """Make a start of a sparse model of the same data, kernel and noise; a few thousand times n kernel entries.

    `dataset`: standardised targets and inputs are read, a part at a time. `seed`: of the rows that are looked at.
    """
    kernel, noise_variance = fold_white(kernel, noise_variance)
    model, targets, n = opened.model, dataset.all_targets(), dataset.n_samples
    chunks = list(dataset.row_chunks())
    residual = np.concatenate([targets[slice(*rows)] - model.mean(dataset.inputs(*rows)) for rows in chunks])
    noise = Noise(noise_variance).beside(dataset).checked(n)
    alpha = residual / column_of(noise.diagonal)
    samples = np.sort(np.random.default_rng(seed).choice(n, min(n, ROWS), replace=False))
    evaluator = model.evaluator()
    looked_at = evaluator.prepare(dataset.input_rows(samples))
    images = column_of(noise.rows(samples).diagonal) * alpha[samples]
    for rows in chunks:
        images += evaluator.matmat(looked_at, evaluator.prepare(dataset.inputs(*rows)), alpha[slice(*rows)])
    quadratic = n / len(samples) * np.einsum("rp,rp->p", alpha[samples], images)
    gained = 2.0 * np.einsum("np,np->p", alpha, targets) - quadratic
    # No more can be gained than 2 min R, which is at most twice the sparse mean's own risk.
    most = 2.0 * np.asarray(opened.certificate.risk)
    start = SparseStart(None, np.asarray(1.0 - gained / most), len(samples))
    return SparseStart(alpha * start.pays, start.share, start.rows) if start.pays.any() else start


def update_sparse(
    opened: OpenedSparse,
    dataset: Dataset,
    relative_noise: FloatArray | None = None,
    sample_noise: FloatArray | None = None,
) -> SparseRecord:
    """Update a model with new samples; 2 n m^2 multiply-adds for n of them, in this process.

    Parameters
    ----------
    dataset : Dataset
        The new samples, as the model sees them.
    relative_noise : (n,) float64, optional
        Multiple of the model's noise variance for each; 1 by default.
    sample_noise : (n,) float64, optional
        Known noise variances of the new samples beside that, standardised; by default those that the data set has.

    Returns
    -------
    SparseRecord
        Of the updated model, which is not stored. Evidence is not carried on.

    Raises
    ------
    InputError
        Other features or targets than the model's, no samples, or values that are not finite; a method whose fit is no
        sum over samples; a model without a proof to carry on.
    NumericalError
        The updated matrix is not positive definite in float64.
    """
    record, before = opened.record, opened.certificate
    _require(opened, dataset)
    n = dataset.n_samples
    of_new = Noise.of(record.noise_variance, sample_noise, relative_noise).beside(dataset).checked(n)
    noise = np.array(np.broadcast_to(of_new.diagonal, (n,)))
    inputs, targets = dataset.inputs(0, n), dataset.all_targets()
    if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
        raise InputError("the new samples have a NaN or an infinity; leave such rows out")
    with single_threaded_blas():
        old = opened.model
        model, squares = _updated(old, inputs, targets, noise)
        evaluator = model.evaluator()
        prototypes = Points.of(model.kernel, evaluator, model.prototypes)
        errors = SampleErrors(Points.of(model.kernel, evaluator, inputs), prototypes)
        whitening = Whitening.of(model.lower, prototypes.scale)
        if whitening is None:
            raise InputError(_NOTHING_PROVEN)
        _, off = largest_residual_diagonal(errors, whitening, squares)
        share = _normal_share(old, model, before.normal_share, float(np.sqrt(np.sum(off**2 / noise))), n)
        risk = _risk(old, model, before, errors, inputs, targets, noise)
        after = replace(
            before,
            n=before.n + n,
            largest_noise=max(before.largest_noise, float(noise.max())),
            target_square=tuple(
                (np.asarray(before.target_square) + np.sum(targets**2 / noise[:, None], axis=0)).tolist()
            ),
            risk=tuple(risk.tolist()),
            magnitude=tuple((EVALUATION * prototypes.size(model.weights)).tolist()),
            spread=tuple((EVALUATION * prototypes.spread(model.weights)).tolist()),
            evidence=None,
            normal_share=share,
        )
    mark = hashlib.sha256(f"{record.fingerprint}+{dataset.fingerprint}".encode()).hexdigest()
    return replace(
        record,
        url="",
        weights=model.weights,
        normal=model.normal,
        fingerprint=mark[: len(record.fingerprint)],
        certificate=after.to_json(),
        summary=_summary(record, after, n),
    )


_NOTHING_PROVEN = (
    "nothing is proven of this sparse model's factors that an update could carry on: they are too ill-conditioned. "
    "Train it again on all samples, with its basis as the given one"
)


def _require(opened: OpenedSparse, dataset: Dataset) -> None:
    record, method = opened.record, opened.model.method
    if not method.is_bound:
        raise InputError(
            f"a model by {method.name} cannot take in new samples by themselves: its fit is no sum over samples. Train "
            "it again on all samples, with its basis as the given one"
        )
    if not math.isfinite(opened.certificate.normal_share):
        raise InputError(_NOTHING_PROVEN)
    for what, mine, theirs in (
        ("features", dataset.feature_names, record.feature_names),
        ("targets", dataset.target_names, record.target_names),
    ):
        if mine != theirs:
            raise InputError(f"the new samples have the {what} {list(mine)}; the model's are {list(theirs)}")
    if dataset.n_samples == 0:
        raise InputError("there are no new samples to update with")


def _updated(
    old: SparseModel, inputs: FloatArray, targets: FloatArray, noise: FloatArray
) -> tuple[SparseModel, FloatArray]:
    """The model of all samples, and the squared lengths of the new ones' rows of F: (n,)."""
    assert old.normal is not None
    evaluator = old.evaluator()
    features, rows = evaluator.prepare(old.prototypes), evaluator.prepare(inputs)
    matrix = old.normal @ old.normal.T
    right = matrix @ (old.lower.T @ old.weights)
    squares, longest = np.empty(len(inputs)), piece_rows(old.m)
    for start in range(0, len(inputs), longest):
        where = slice(start, min(start + longest, len(inputs)))
        phi = np.asarray(
            whiten(old.lower, evaluator.tile(features, rows.slice(where.start, where.stop)), transposed=False)
        )
        squares[where] = np.einsum("mr,mr->r", phi, phi)
        weighted = phi / noise[where]
        matrix += weighted @ phi.T
        right += weighted @ targets[where]
    # `normal_factor` adds the unit that is in C C' already.
    matrix[np.diag_indices(old.m)] -= 1.0
    normal = normal_factor(np.asfortranarray(matrix), float(noise.min()))
    z = solve_by_factor(normal, right)
    weights = np.asarray(whiten(old.lower, z, transposed=True))
    return replace(old, weights=weights, normal=normal), squares


def _normal_share(old: SparseModel, new: SparseModel, share: float, row_error: float, n: int) -> float:
    """Bound on the distance of the new C C' from I + F'DF of all samples, in norm.

    The old error; its product, 2 m roundings, a sum over n new samples in any order, and a factorisation, each
    of the new trace at most; and the errors of the new rows of F.
    """
    assert new.normal is not None
    length = float(np.linalg.norm(new.normal)) * (1.0 + 4.0 * EPS)
    roundings = (4 * new.m + n + 40) * UNIT * length**2
    return share * (1.0 + 4.0 * EPS) + float(EVALUATION * (roundings + 2.0 * length * row_error + row_error**2))


def _risk(
    old: SparseModel,
    new: SparseModel,
    before: SparseCertificate,
    errors: SampleErrors,
    inputs: FloatArray,
    targets: FloatArray,
    noise: FloatArray,
) -> FloatArray:
    """Upper bound on the risk of the new mean over all samples: (p,)."""
    assert old.normal is not None
    step = new.weights - old.weights
    residual = targets - new.mean(inputs)
    squares = np.array([math.fsum(column) for column in (residual**2 / noise[:, None]).T])
    misfit = highest_misfit(errors, new.weights, squares, targets, noise)
    # A difference of weights is a rounding off, too, which the bound's own (m + 2) stand for twice over.
    whitened = np.sqrt(highest_whitened_penalty(old.lower, step) * (1.0 + 8.0 * EPS))
    computed = old.lower.T @ step
    slack = 2.0 * EVALUATION * (old.m + 4) * UNIT * (np.linalg.norm(old.lower, axis=1) @ np.abs(step))
    frobenius = float(np.linalg.norm(old.normal)) * (1.0 + 4.0 * EPS)
    image = np.linalg.norm(old.normal.T @ computed, axis=0) * (1.0 + (old.m + 4) * UNIT)
    image += frobenius * (EVALUATION * (old.m + 4) * UNIT * np.linalg.norm(computed, axis=0) + slack)
    length = np.sqrt(image**2 + before.normal_share * (whitened + slack) ** 2) * (1.0 + 8.0 * EPS)
    highest = (np.sqrt(2.0 * np.asarray(before.risk)) * (1.0 + 2.0 * EPS) + length) ** 2
    return np.asarray(0.5 * (highest + misfit) * (1.0 + 16.0 * EPS))


def _summary(record: SparseRecord, certificate: SparseCertificate, n: int) -> dict[str, Any]:
    """Return the old summary with the new figures."""
    return {
        **record.summary,
        "n": certificate.n,
        **certificate.summary(),
        "rms_bound_raw": (certificate.rms_bound * record.standardisation.target_std).tolist(),
        "updated_with": record.summary.get("updated_with", 0) + n,
    }
