"""Labels on a basis with neighbours: samples, searches for their modes, and dense steps by the definition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, log_ndtr

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel, Matern32
from dkgp.models.classification.likelihoods import Likelihood, Link
from dkgp.models.classification.near import ColumnLabels, ColumnState, ModeSearch
from dkgp.models.context import RunContext
from dkgp.models.sparse.vif import Neighbourhood, Neighbours
from dkgp.operators import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator

N = 70
KERNEL = Matern32((1.5, 0.7), 9.0)


class Step(NamedTuple):
    """Result of a step: its number of halvings, its full length, and its noise."""

    values: np.ndarray
    weights: np.ndarray
    psi: float
    halvings: int = 0
    way: np.ndarray | None = None
    noise: np.ndarray | None = None


def rows(n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, 2), labels -1 and 1 that overlap, and a basis of eight."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 2))
    signs = np.where(np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return X, signs, np.concatenate([X[::9][:6], rng.standard_normal((2, 2))])


def derivatives(link: str, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-log p(y | f), and its first and second derivative by f."""
    if link == "logit":
        return -log_expit(y * f), -y * expit(-y * f), expit(f) * expit(-f)
    ratio = np.exp(-0.5 * f**2 - log_ndtr(y * f)) / np.sqrt(2.0 * np.pi)
    return -log_ndtr(y * f), -y * ratio, ratio * (ratio + y * f)


def dense_step(link: str, y: np.ndarray, w: np.ndarray, covariance: object, before: Step) -> Step | None:
    """The step that the search takes from where another one led; None where it stalls.

    `covariance` gives Sigma for the noise W^-1: at f; where the one before has noise, that, unless W at f is more than
    one and a half of its W.
    """
    f, a, psi = before.values, before.weights, before.psi
    _, slope, curvature = derivatives(link, y, f)
    noise = 1.0 / np.maximum(w * curvature, 1e-10)
    if before.noise is not None:
        noise = np.array([new if old > 1.5 * new else old for old, new in zip(before.noise, noise, strict=True)])
    u = f - noise * w * slope
    towards = np.linalg.solve(covariance(noise), u)  # type: ignore[operator]
    change, turn = u - noise * towards - f, towards - a
    for halvings in range(21):
        length = 0.5**halvings
        values, weights = f + length * change, a + length * turn
        reached = float(w @ derivatives(link, y, values)[0] + weights @ values / 2.0)
        if np.abs(change).max() <= 1.0 or reached <= psi + 1e-3 * abs(psi):
            return Step(values, weights, reached, halvings, change, noise)
    return None


def exact(kernel: Kernel, X: np.ndarray) -> object:
    """Sigma by noise where halos are everything."""
    K = np.asarray(kernel(X, X))
    return lambda noise: K + np.diag(noise)


@dataclass
class Found:
    """A search, and what it is made of."""

    search: ModeSearch
    operator: BlockedKernelOperator
    held: Neighbourhood
    leaves: list[tuple[np.ndarray, np.ndarray]]  # halo and own samples


@contextmanager
def searching(
    executor: LocalExecutor,
    neighbours: Neighbours,
    kernel: Kernel = KERNEL,
    n: int = N,
    basis: int = 8,
    scale: float = 1.0,
) -> Iterator[Found]:
    """`scale` brings the inputs of `rows` closer."""
    X, Z = (scale * rows(n)[part] for part in (0, 2))
    with RunContext.of(executor).operator(kernel, 4.0, ArrayInputs(X)) as operator:
        held = Neighbourhood(operator, neighbours)
        leaves = []
        for number in range(held.leaves.n_bundles):
            bundle = held.leaves.bundle(number)
            for places, halo in zip(bundle.places, bundle.halos, strict=True):
                leaves.append((bundle.samples[places[:halo]], bundle.samples[places[halo:]]))
        yield Found(ModeSearch(operator, held, held.described(operator, Z[:basis])), operator, held, leaves)


def column_labels(link: Link, y: np.ndarray, weights: np.ndarray | None = None) -> ColumnLabels:
    return ColumnLabels(y, Likelihood.of(link, "ovr", 2).loss, weights)


def ended(search: ModeSearch, labels: ColumnLabels, tolerance: float = 1e-10, most_steps: int = 100) -> ColumnState:
    state = ColumnState.start(labels)
    while not state.ended:
        search.step(state, labels, tolerance, most_steps)
    return state
