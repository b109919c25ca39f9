"""Predictions of a sparse model with neighbours: of new samples, each by itself behind the samples nearest to it.

A new sample is a leaf of one behind its halo J, of all samples: with C = (K - F F')_JJ + S, A = C^-1 (K - F F')_J* and
w = F_* - F_J'A, what is known of the basis' part, its mean z and covariance B^-1, gives the function at it

    mean = A'Y_J + w'z,      variance = k_** - |F_*|^2 - A'(K - F F')_J* + w'B^-1 w.

Where halos are everything these are the exact model's; without them, FITC's. Neighbours are found in one round, and
their rows sent with the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels import Features
from dkgp.models.sparse.vif.leaf import factor_leaf
from dkgp.models.sparse.vif.objective import Joint, Neighbourhood
from dkgp.models.sparse.vif.tasks import Described, refuse_leaf
from dkgp.operators.base import FloatArray, IndexArray, Noise, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.vecchia.embedding import embed_inputs
from dkgp.operators.vecchia.halos import kd_order
from dkgp.operators.vecchia.leaves import Leaves, gathered

# New samples of a task: neighbours of each other, whose halos overlap.
SAMPLES_A_TASK = 256


@dataclass(frozen=True)
class NewSamples:
    """Some new samples, and what is known of the samples near them."""

    inputs: FloatArray  # (b, d)
    samples: NDArray[np.int32]  # all of their halos: (u,)
    places: tuple[IndexArray, ...]  # of each new sample, places of its halo in `samples`
    right: FloatArray  # targets of these: (u, p)
    noise: Noise


@needs_one_arithmetic
def near_task(leaves: Leaves, size: int, pieces: list[FloatArray]) -> list[list[NDArray[np.int32]]]:
    """Samples that are nearest to each of some inputs (b, d)."""
    points = leaves.points()
    return [
        [points.order[points.near(point, size)] for point in embed_inputs(leaves.context, leaves.embedding, inputs)]
        for inputs in pieces
    ]


@needs_one_arithmetic
def vif_prediction_task(
    model: Described, joint: Joint, noise_variance: float, pieces: list[NewSamples]
) -> list[tuple[FloatArray, FloatArray]]:
    """Means (b, p) and variances (b,) of the function at new samples."""
    return [_predicted(model, joint, noise_variance, piece) for piece in pieces]


def _predicted(model: Described, joint: Joint, noise_variance: float, new: NewSamples) -> tuple[FloatArray, FloatArray]:
    context, rank, (t, p) = model.context, model.rank, (len(new.inputs), joint.whitened.shape[1])
    evaluator = context.evaluator("double")
    features = evaluator.prepare(new.inputs)
    if len(new.samples):
        near = gathered(context, new.samples, "double")
        values = np.concatenate([near.values[:, : near.n], features.values[:, :t]], axis=1)
        norms = np.concatenate([near.squared_norms[:, : near.n], features.squared_norms[:, :t]], axis=1)
        features = Features(values, norms, near.n + t)
    known = np.concatenate([new.right, np.zeros((t, p))])
    rows = np.concatenate([model.factor_rows(evaluator, features.take(np.arange(len(known)))), known], axis=1)
    mean, variance, means = np.empty((t, p)), np.empty(t), np.empty((t, rank))
    for number, halo in enumerate(new.places):
        places = np.append(halo, len(new.samples) + number)
        right = rows[places]
        # Of an observation: with its noise, no duplicate of a sample is without a variance.
        noise = np.append(np.broadcast_to(noise_at(new.noise, halo), (len(halo),)), noise_variance)
        leaf = factor_leaf(evaluator, features.take(places), len(halo), noise, right, rank)
        if leaf is None:
            raise refuse_leaf(len(halo), noise)
        scale = 1.0 / leaf.rows[0, -1]
        means[number] = scale * leaf.images[0, :rank]  # w
        mean[number] = means[number] @ joint.whitened - scale * leaf.images[0, rank:]
        variance[number] = max(scale * scale - noise_variance, 0.0)
    if rank:
        half = scipy.linalg.solve_triangular(joint.normal, means.T, lower=True, check_finite=False)
        variance += np.einsum("mi,mi->i", half, half)
    return mean, variance


def predict(
    held: Neighbourhood,
    operator: BlockedKernelOperator,
    model: Described,
    joint: Joint,
    targets: FloatArray,
    inputs: FloatArray,
    size: int,
) -> tuple[FloatArray, FloatArray]:
    """Means (t, p) and variances (t,) of the function at standardised inputs (t, d), behind `size` samples each.

    `targets` (n, p) are those of `joint`. Raises `InputError` for inputs of another shape.
    """
    d = operator.kernel.n_features
    if inputs.ndim != 2 or inputs.shape[1] != d:
        raise InputError(f"expected inputs of shape (t, {d}); got {inputs.shape}")
    t, p = len(inputs), targets.shape[1]
    mean, variance = np.empty((t, p)), np.empty(t)
    if not t:
        return mean, variance
    points = embed_inputs(held.leaves.context, held.leaves.embedding, inputs)
    order, bounds = kd_order(points, SAMPLES_A_TASK)
    cut = [order[start:stop] for start, stop in pairwise(bounds.tolist())]
    noise_variance = float(np.min(operator.noise))
    with single_threaded_blas():
        groups = [[inputs[part]] for part in cut]
        found = operator.submit("kvifnear", near_task, (held.leaves, size), groups).result()
        pieces = []
        for part, halos in zip(cut, found, strict=True):
            samples = np.unique(np.concatenate(halos))
            places = tuple(np.searchsorted(samples, halo) for halo in halos)
            pieces.append(
                [NewSamples(inputs[part], samples, places, targets[samples], noise_at(operator.noise, samples))]
            )
        arguments = (model, joint, noise_variance)
        results = operator.submit("kvifpredict", vif_prediction_task, arguments, pieces).result()
    for part, (means, variances) in zip(cut, results, strict=True):
        mean[part], variance[part] = means, variances
    return mean, variance
