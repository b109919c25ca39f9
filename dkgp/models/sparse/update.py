"""New samples for a sparse model, without those that it was trained on.

I + F'DF and F'D y are sums over samples: those of the old ones are in the model, C C' and C C' z, and the new ones' are
added. The basis stays, and so do kernel, noise and standardisation; the weights are those of a fit to all samples.

What is proven is carried on, where the old samples are no more. Twice the risk is a squared length, of (y - f) and f
together, so over the old samples it grows from f to the updated f + delta to no more than

    (sqrt(2 R(f)) + |delta|)^2,    |delta|^2 = delta' (I + F'DF) delta  <=  |C' delta|^2 + h |delta|^2

with delta in whitened form, however the new weights were found; the new samples' part of the risk is evaluated. The
least risk of all is never below that of the old samples alone, of which lower bounds are known. Neither is tight for
long: once the new samples are many, training again with this basis proves more.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, SparseRecord
from dkgp.errors import InputError
from dkgp.models.noise import Noise
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.errors import Points, SampleErrors, largest_residual_diagonal
from dkgp.models.sparse.fit import normal_factor
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.risk import highest_misfit, highest_whitened_penalty
from dkgp.models.sparse.stored import OpenedSparse
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray
from dkgp.operators.cross.tasks import piece_rows
from dkgp.operators.low_rank.pivots import whiten


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
        What each has of the model's noise variance; all of it by default.
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
        sum over samples; a model of which nothing is proven that could be carried on.
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
    z = whiten(normal, whiten(normal, right, transposed=False), transposed=True)
    weights = np.asarray(whiten(old.lower, z, transposed=True))
    return replace(old, weights=weights, normal=normal), squares


def _normal_share(old: SparseModel, new: SparseModel, share: float, row_error: float, n: int) -> float:
    """Bound on the distance of the new C C' from I + F'DF of all samples, in norm.

    What the old one had; its product, 2 m roundings, a sum over n new samples in any order, and a factorisation, each
    of the new trace at most; and what the new rows of F are off.
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
    """The old summary with what has changed."""
    return {
        **record.summary,
        "n": certificate.n,
        **certificate.summary(),
        "rms_bound_raw": (certificate.rms_bound * record.standardisation.target_std).tolist(),
        "updated_with": record.summary.get("updated_with", 0) + n,
    }
