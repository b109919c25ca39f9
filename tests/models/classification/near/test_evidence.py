"""Laplace's evidence with neighbours: the dense one where halos are everything, and its slopes against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.models.classification import near as evidence_module
from dkgp.models.classification.near import EvidenceLabels, LabelVifObjective
from dkgp.models.sparse.vif.objective import Neighbours
from dkgp.models.tuning.kernel_family import family_of
from dkgp.models.tuning.laplace.columns import LogitEvidence, ProbitEvidence
from dkgp.operators import ArrayInputs
from tests.workers import on_dask

NAMES = ("a", "b", "c")
DENSE: dict[str, Any] = {"logit": LogitEvidence, "probit": ProbitEvidence}
RBF, SUM = SquaredExponential((1.0, 0.5, 0.2), 3.0), parse_kernel("matern32 + linear", 3)
# Relative errors of gradients by the corrections made: what a leaf's halo leaves out moves little with W.
ERRORS = {0: 2e-2, 1: 1e-3, 4: 1e-5}


def labelled(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, two columns of signs, weights of which some are zero, and a basis."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n, 3))
    latent = 2.0 * np.sin(2.0 * X[:, :1]) + X[:, 1:2] + rng.standard_normal((n, 2))
    weights = np.maximum(rng.uniform(-0.5, 3.0, n), 0.0)
    return X, np.where(latent > 0.0, 1.0, -1.0), weights, np.concatenate([X[::12], rng.standard_normal((2, 3))])


def objective(
    X: np.ndarray, signs: np.ndarray, weights: np.ndarray | None, executor: Any, name: str, leaf: int, halo: int
) -> LabelVifObjective:
    columns = [EvidenceLabels(column, DENSE[name].loss, weights) for column in signs.T]
    return LabelVifObjective(ArrayInputs(X), columns, executor, Neighbours(leaf, halo))


@pytest.mark.covering(2)
@pytest.mark.parametrize("basis", [0, 8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("kernel", [RBF, SUM], ids=["rbf", "sum"])
def test_with_all_samples_near_it_is_the_dense_evidence(
    kernel: Kernel, name: str, weighted: bool, basis: int, executor: BlockExecutor
) -> None:
    X, signs, weights, Z = labelled(70)
    used = weights if weighted else None
    tried = objective(X, signs, used, executor, name, 8, 70)(kernel, 1.0, Z[:basis])
    family = family_of(kernel, X, True, NAMES)
    outcome = DENSE[name](family, signs, None, used)(np.append(family.initial(), 0.0))
    assert outcome is not None
    assert tried.value == pytest.approx(outcome[0], rel=1e-7)
    np.testing.assert_allclose(tried.gradient, outcome[1], rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize(("leaf", "halo"), [(8, 12), (4, 8)])
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("kernel", [RBF, SUM], ids=["rbf", "sum"])
def test_gradient_is_nearly_the_slope_of_the_value(
    kernel: Kernel, name: str, leaf: int, halo: int, executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more corrections of how the mode moves, the nearer."""
    X, signs, weights, Z = labelled(60)
    tried = objective(X, signs, weights, executor, name, leaf, halo)
    tried.hold(kernel)
    monkeypatch.setattr(evidence_module, "TOLERANCE", 1e-9)
    at = np.log([parameter.value for parameter in kernel.parameters()])

    def value(point: np.ndarray) -> float:
        return tried(kernel.with_parameters(np.exp(point)), 1.0, Z).value

    steps = 1e-4 * np.eye(len(at))
    slopes = np.array([(value(at + step) - value(at - step)) / 2e-4 for step in steps])
    errors = {}
    for corrections in ERRORS:
        monkeypatch.setattr(evidence_module, "CORRECTIONS", corrections)
        gradient = tried(kernel, 1.0, Z).gradient
        assert gradient[-1] == 0.0
        errors[corrections] = float(np.linalg.norm(gradient[:-1] - slopes) / np.linalg.norm(slopes))
    assert all(errors[corrections] <= least for corrections, least in ERRORS.items())
    assert errors[4] < errors[0]


def test_noise_is_of_no_account_and_columns_are_added_up(executor: BlockExecutor) -> None:
    X, signs, weights, Z = labelled(90)
    both = objective(X, signs, weights, executor, "logit", 8, 16)(RBF, 1.0, Z)
    each = [objective(X, signs[:, [k]], weights, executor, "logit", 8, 16)(RBF, 9.0, Z) for k in range(2)]
    assert both.value == pytest.approx(sum(part.value for part in each), rel=1e-12)
    np.testing.assert_allclose(both.gradient, sum(part.gradient for part in each), rtol=1e-9, atol=1e-9)
    assert both.unexplained == pytest.approx(each[0].unexplained, rel=1e-12)


def test_whole_weights_are_repeated_samples(executor: BlockExecutor) -> None:
    X, signs, _, Z = labelled(50)
    counts = np.random.default_rng(1).integers(0, 4, 50)
    again = np.repeat(np.arange(50), counts)
    weighted = objective(X, signs, counts.astype(np.float64), executor, "logit", 5, 50)(RBF, 1.0, Z)
    repeated = objective(X[again], signs[again], None, executor, "logit", 5, len(again))(RBF, 1.0, Z)
    assert weighted.value == pytest.approx(repeated.value, rel=1e-7)
    np.testing.assert_allclose(weighted.gradient, repeated.gradient, rtol=1e-5, atol=1e-6)


def test_it_goes_on_from_the_last_modes(executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, signs, _, Z = labelled(120)
    taken = []
    step = evidence_module.ModeSearch.step

    def counted(*arguments: Any) -> None:
        taken.append(1)
        step(*arguments)

    monkeypatch.setattr(evidence_module.ModeSearch, "step", counted)
    tried, moved = objective(X, signs, None, executor, "logit", 8, 16), SquaredExponential((1.1, 0.5, 0.2), 3.3)
    tried.hold(RBF)
    tried(RBF, 1.0, Z)
    taken.clear()
    warm = tried(moved, 1.0, Z)
    after_the_last, start = len(taken), tried.start
    assert start is not None
    assert start.dtype == np.float32
    taken.clear()
    # From zero, and from far off.
    for begin in (None, 30.0 * np.random.default_rng(0).standard_normal((120, 2)).astype(np.float32)):
        tried.start = begin
        taken.clear()
        cold = tried(moved, 1.0, Z)
        assert len(taken) > after_the_last
        assert cold.value == pytest.approx(warm.value, rel=1e-7)
        np.testing.assert_allclose(cold.gradient, warm.gradient, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(tried.start, start, atol=1e-5)


def test_modes_that_lead_nowhere_are_not_gone_on_from(executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, signs, _, Z = labelled(80)
    tried = objective(X, signs, None, executor, "logit", 8, 16)
    cold, step = tried(RBF, 1.0, Z), evidence_module.ModeSearch.step

    def lost(search: Any, state: Any, *others: Any) -> None:
        if np.isinf(state.psi):  # begun elsewhere than at zero
            state.ended = "stalled"
        else:
            step(search, state, *others)

    monkeypatch.setattr(evidence_module.ModeSearch, "step", lost)
    again = tried(RBF, 1.0, Z)
    assert again.value == cold.value
    np.testing.assert_array_equal(again.gradient, cold.gradient)


@pytest.mark.long
def test_bits_do_not_depend_on_who_computes(executor: BlockExecutor) -> None:
    X, signs, _, Z = labelled(400)
    here = objective(X, signs, None, executor, "logit", 8, 16)(RBF, 1.0, Z)
    with on_dask(2, processes=False) as (workers, _):
        there = objective(X, signs, None, workers, "logit", 8, 16)(RBF, 1.0, Z)
    assert here.value == there.value
    np.testing.assert_array_equal(here.gradient, there.gradient)


def test_refusals(executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, signs, _, Z = labelled(50)
    with pytest.raises(InputError, match=r"expected columns of labels of 50 samples; got \[49\]"):
        LabelVifObjective(ArrayInputs(X), [EvidenceLabels(signs[:49, 0], DENSE["logit"].loss)], executor)
    monkeypatch.setattr(evidence_module, "MOST_STEPS", 2)
    with pytest.raises(NumericalError, match="the labels' mode was not found in 2 steps"):
        objective(X, signs, None, executor, "logit", 8, 16)(RBF, 1.0, Z)
