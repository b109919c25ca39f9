"""Newton's steps of labels on a basis with neighbours, against dense steps by their definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import NumericalError
from dkgp.kernels import Matern32
from dkgp.models.classification.likelihoods import Link
from dkgp.models.classification.near import (
    LOWER,
    MOST_HALVINGS,
    MOST_IDLE,
    ColumnLabels,
    ColumnState,
    evidence,
)
from dkgp.models.sparse.vif.objective import Neighbours
from dkgp.models.tuning.laplace.columns import ColumnMode, column_mode
from tests.models.classification.near.problems import (
    KERNEL,
    N,
    Step,
    column,
    dense_step,
    derivatives,
    ended,
    exact,
    rows,
    searching,
)
from tests.models.sparse.vif.dense_vif import covariance

EVERYTHING, FEW = Neighbours(8, N), Neighbours(6, 10)
both_links = pytest.mark.parametrize("link", ["logit", "probit"])
by_weight = pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])


def weights_of(weighted: bool) -> np.ndarray | None:
    return np.random.default_rng(2).uniform(0.1, 3.0, N) if weighted else None


def far_on_the_wrong_side(labels: ColumnLabels) -> ColumnState:
    """Of the exact covariance, f = K a, at values up to 18."""
    X, y, _ = rows()
    a = -0.2 * y
    f = np.asarray(KERNEL(X, X)) @ a
    return ColumnState(f, a, labels.risk(f) + 0.5 * float(a @ f))


@pytest.mark.covering
@both_links
@by_weight
@pytest.mark.parametrize("far", [False, True], ids=["from zero", "from far on the wrong side"])
def test_where_halos_are_everything_the_whole_path_is_dense_newtons(
    link: Link, weighted: bool, far: bool, one_thread: LocalExecutor
) -> None:
    (X, y, _), w = rows(), weights_of(weighted)
    labels, each = column(link, y, w), np.ones(N) if w is None else w
    state = far_on_the_wrong_side(labels) if far else ColumnState.start(labels)
    if not far:
        assert state.psi == pytest.approx(each.sum() * math.log(2.0))
    step: Step | None = Step(state.values, state.weights, state.psi)
    halved = []
    with searching(one_thread, EVERYTHING) as found:
        while not state.ended:
            found.search.step(state, labels, 1e-9, 40)
            assert step is not None
            step = dense_step(link, y, each, exact(KERNEL, X), step._replace(noise=None))
            assert step is not None
            assert step.way is not None
            halved.append(step.halvings)
            # Noise is up to 1e8 there.
            np.testing.assert_allclose(state.values, step.values, rtol=1e-5, atol=1e-5 if far else 1e-6)
            np.testing.assert_allclose(state.weights, step.weights, rtol=1e-5, atol=1e-6)
            assert state.psi == pytest.approx(step.psi, rel=1e-7)
            assert state.change == pytest.approx(np.abs(step.way).max(), rel=1e-4, abs=1e-6)
            assert state.steps == len(halved)
            assert (state.ended == "mode") == (state.change <= 1e-9)
    assert state.ended == "mode"
    assert state.steps <= (25 if far else 9)
    # A probit's curvature is near one there, and no step goes too far.
    assert (max(halved) > 0) == (far and link == "logit")


def dense_mode(y: np.ndarray, link: Link, w: np.ndarray | None, X: np.ndarray) -> tuple[ColumnMode, float]:
    """Laplace's mode and evidence of the exact model."""
    work = np.empty((len(X), len(X)), order="F")
    found = column_mode(np.asarray(KERNEL(X, X)), y, column(link, y).loss, work, w)
    assert found is not None
    return found, found.objective - float(np.log(np.diagonal(work)).sum())


@pytest.mark.covering
@both_links
@by_weight
@pytest.mark.parametrize("basis", [0, 8])
def test_where_halos_are_everything_it_ends_at_laplaces_mode_with_its_evidence(
    link: Link, weighted: bool, basis: int, one_thread: LocalExecutor
) -> None:
    (X, y, _), w = rows(), weights_of(weighted)
    mode, value = dense_mode(y, link, w, X)
    with searching(one_thread, EVERYTHING, basis=basis) as found:
        state = ended(found.search, column(link, y, w))
    np.testing.assert_allclose(state.values, mode.values, atol=1e-6)
    np.testing.assert_allclose(state.weights, mode.alpha, atol=1e-6)
    assert evidence(state) == pytest.approx(value, abs=1e-6)


@both_links
@by_weight
def test_with_few_neighbours_a_step_is_of_the_sparse_models_covariance(
    link: Link, weighted: bool, one_thread: LocalExecutor
) -> None:
    """Steps and evidence, by a dense Sigma for each noise; the end is the fixed point."""
    (X, y, Z), w = rows(), weights_of(weighted)
    labels, each = column(link, y, w), np.ones(N) if w is None else w
    state = ColumnState.start(labels)
    with searching(one_thread, FEW) as found:

        def sigma(noise: np.ndarray) -> np.ndarray:
            return covariance(KERNEL, noise, X, Z, found.leaves)

        while not state.ended:
            f = state.values
            before = Step(f, state.weights, state.psi)
            found.search.step(state, labels, 1e-10, 60)
            step = dense_step(link, y, each, sigma, before)
            assert step is not None
            np.testing.assert_allclose(state.values, step.values, rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(state.weights, step.weights, rtol=1e-7, atol=1e-7)
            noise = 1.0 / (each * derivatives(link, y, f)[2])
            determinant = np.linalg.slogdet(sigma(noise))[1] - np.log(noise).sum()
            assert evidence(state) == pytest.approx(-step.psi - 0.5 * determinant, rel=1e-9)
        assert state.ended == "mode"
        f = state.values
        _, slope, curvature = derivatives(link, y, f)
        noise = 1.0 / (each * curvature)
        np.testing.assert_allclose(state.weights, -each * slope, atol=1e-8)
        np.testing.assert_allclose(f, (sigma(noise) - np.diag(noise)) @ (-each * slope), atol=1e-7)
    # Another model than the exact one.
    assert np.abs(f - dense_mode(y, link, w, X)[0].values).max() > 1e-3


def test_the_evidence_of_a_step_cut_short_has_the_determinant_of_sigma(one_thread: LocalExecutor) -> None:
    """Coefficients of a shorter step are not Sigma^-1 u."""
    X, y, _ = rows()
    labels = column("logit", y)
    state = far_on_the_wrong_side(labels)
    f = state.values
    with searching(one_thread, EVERYTHING) as found:
        found.search.step(state, labels, 1e-9, 1)
    assert state.ended == "steps"
    assert np.abs(state.values - f).max() < 0.6 * state.change
    W = derivatives("logit", y, f)[2]
    B = np.eye(N) + np.sqrt(W)[:, None] * np.asarray(KERNEL(X, X)) * np.sqrt(W)
    assert evidence(state) == pytest.approx(-state.psi - 0.5 * np.linalg.slogdet(B)[1], rel=1e-8)


def test_a_curvature_has_a_floor_and_a_weight_of_zero_leaves_a_sample_out(one_thread: LocalExecutor) -> None:
    X, y, _ = rows()
    labels = column("logit", y)
    np.testing.assert_array_equal(labels.curvature(np.full(N, 60.0)), 1e-10)
    w = np.ones(N)
    w[::5] = 0.0
    np.testing.assert_array_equal(column("logit", y, w).curvature(np.zeros(N))[::5], 1e-10)
    with searching(one_thread, EVERYTHING) as found:
        state = ended(found.search, column("logit", y, w), 1e-6)
    kept = w > 0.0
    mode, value = dense_mode(y[kept], "logit", None, X[kept])
    np.testing.assert_allclose(state.values[kept], mode.values, atol=1e-5)
    # What nobody has labelled follows from the others.
    np.testing.assert_allclose(state.values[~kept], np.asarray(KERNEL(X[~kept], X[kept])) @ mode.alpha, atol=1e-5)
    assert evidence(state) == pytest.approx(value, abs=1e-4)


def test_labels_that_are_told_apart_without_an_end_end_by_steps(one_thread: LocalExecutor) -> None:
    """Of a function that may be as large as it likes; each step goes about one further."""
    X, _, _ = rows()
    labels = column("logit", np.where(X[:, 0] > 0.0, 1.0, -1.0))
    with searching(one_thread, EVERYTHING, Matern32((0.1, 0.1), 1e8)) as found:
        state = ended(found.search, labels, 1e-3, 12)
        assert (state.ended, state.steps) == ("steps", 12)
        assert state.change > 0.1
        assert math.isfinite(evidence(state))
        # It was on its way.
        after = ended(found.search, labels, 1e-3, 60)
    assert after.psi < state.psi


def test_after_steps_that_gain_nothing_the_noise_is_held(one_thread: LocalExecutor) -> None:
    """Neither nearer nor lower so often in a row; a single gain is another beginning."""
    _, y, _ = rows()
    labels = column("logit", y)
    with searching(one_thread, Neighbours(8, 12)) as found:
        state = ended(found.search, labels, 1e-9)
        assert (state.ended, state.held) == ("mode", False)
        # At the fixed point, and with the least change and psi that there may be: no step is a gain.
        state.ended, state.least, state.lowest, state.idle = "", 0.0, 0.0, MOST_IDLE - 2
        found.search.step(state, labels, 0.0, 10**6)
        assert (state.held, state.idle) == (False, MOST_IDLE - 1)
        nearer = replace(state, least=math.inf)
        found.search.step(nearer, labels, 0.0, 10**6)
        assert (nearer.held, nearer.idle, nearer.least) == (False, 0, nearer.change)
        lower = replace(state, lowest=state.psi * (1.0 + 2.0 * LOWER))
        found.search.step(lower, labels, 0.0, 10**6)
        assert (lower.held, lower.idle, lower.least, lower.lowest) == (False, 0, 0.0, lower.psi)
        hardly = replace(state, lowest=state.psi * (1.0 + 0.5 * LOWER))
        found.search.step(hardly, labels, 0.0, 10**6)
        assert (hardly.held, hardly.idle, hardly.lowest) == (True, MOST_IDLE, hardly.psi)
        found.search.step(state, labels, 0.0, 10**6)
        assert (state.ended, state.held, state.idle) == ("", True, MOST_IDLE)


def test_held_noise_falls_where_labels_say_far_more(one_thread: LocalExecutor) -> None:
    _, y, _ = rows()
    labels = column("logit", y)
    f = np.linspace(-4.0, 4.0, N)
    curvature = derivatives("logit", y, f)[2]
    last = curvature * np.where(np.arange(N) % 2, 1.01, 0.99) / 1.5
    state = ColumnState(f, np.zeros(N), 0.0, noise=1.0 / last)
    np.testing.assert_array_equal(state.next_curvature(labels), labels.curvature(f))
    state.held = True
    np.testing.assert_allclose(state.next_curvature(labels), np.where(np.arange(N) % 2, last, curvature), rtol=1e-12)


def test_a_step_that_no_halving_helps_is_not_taken(one_thread: LocalExecutor) -> None:
    """Where psi is zero every rise is too much: coefficients that are of another covariance."""
    _, y, _ = rows()
    calls = []

    class Counted(ColumnLabels):
        def risk(self, values: np.ndarray) -> float:
            calls.append(values)
            return super().risk(values)

    plain = column("logit", y)
    f = -3.0 * y
    a = 2.0 * plain.risk(f) / (3.0 * N) * y
    assert plain.risk(f) + 0.5 * float(a @ f) == pytest.approx(0.0, abs=1e-9)
    state = ColumnState(f, a, -1e-9)
    with searching(one_thread, EVERYTHING, Matern32((1.5, 0.7), 1e4)) as found:
        found.search.step(state, Counted(y, plain.loss), 1e-3, 100)
    assert state.ended == "stalled"
    assert len(calls) == 1 + MOST_HALVINGS
    assert state.values is f
    assert state.weights is a
    assert (state.psi, state.steps) == (-1e-9, 1)
    assert state.change > 1.0


@pytest.mark.parametrize(
    ("link", "amplitude", "scale"),
    [("probit", 6.0, 0.3), pytest.param("logit", 1e4, 1.0, marks=pytest.mark.long)],
    ids=["many samples within a length scale", "a large amplitude"],
)
def test_steps_that_have_no_end_have_one_with_held_noise(
    link: Link, amplitude: float, scale: float, one_thread: LocalExecutor
) -> None:
    """One neighbour for each sample; each step by a dense Sigma. A hundred whose noise is not held are not enough."""
    (X, y, Z), labels, kernel = rows(), column(link, rows()[1]), Matern32((1.5, 0.7), amplitude)
    state, held = ColumnState.start(labels), 0
    with searching(one_thread, Neighbours(1, 1), kernel, basis=0, scale=scale) as found:

        def sigma(noise: np.ndarray) -> np.ndarray:
            return covariance(kernel, noise, scale * X, Z[:0], found.leaves)

        def stepped(before: Step) -> Step:
            step = dense_step(link, y, np.ones(N), sigma, before)
            assert step is not None
            return step

        while not state.ended:
            before = Step(state.values, state.weights, state.psi, noise=state.noise if state.held else None)
            held += state.held
            found.search.step(state, labels, 1e-6, 100)
            step = stepped(before)
            np.testing.assert_allclose(state.values, step.values, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(state.noise, step.noise, rtol=1e-4)
        plain = Step(np.zeros(N), np.zeros(N), labels.risk(np.zeros(N)))
        for _ in range(100):
            plain = stepped(plain._replace(noise=None))
        assert plain.way is not None
        assert np.abs(plain.way).max() > 3e-6
        assert state.ended == "mode"
        assert held > 2
        # The fixed point of the noise that was held.
        g = -derivatives(link, y, state.values)[1]
        assert state.noise is not None
        np.testing.assert_allclose(state.values, (sigma(state.noise) - np.diag(state.noise)) @ g, atol=1e-4)


@pytest.mark.parametrize(("rise", "whole"), [(0.9e-3, True), (1.1e-3, False)])
def test_a_step_may_rise_by_a_thousandth(rise: float, whole: bool, one_thread: LocalExecutor) -> None:
    """And a step of at most one by as much as it likes."""
    _, y, _ = rows()
    labels, start = column("logit", y), ColumnState.start(column("logit", y))
    with searching(one_thread, FEW) as found:
        free = ColumnState.start(labels)
        found.search.step(free, labels, 1e-3, 10)
        assert free.change > 1.0
        lower = replace(start, psi=free.psi / (1.0 + rise))
        found.search.step(lower, labels, 1e-3, 10)
        assert (lower.values == free.values).all() == whole
        while free.change > 1.0:
            before = replace(free, psi=0.5 * free.psi)
            found.search.step(free, labels, 1e-3, 10)
        found.search.step(before, labels, 1e-3, 10)
        np.testing.assert_array_equal(before.values, free.values)


def test_what_overflows_is_told(one_thread: LocalExecutor) -> None:
    _, y, _ = rows()
    state = ColumnState(1e200 * y, np.zeros(N), 0.0)
    with (
        searching(one_thread, FEW) as found,
        pytest.raises(NumericalError, match="overflows: bring inputs that are far out closer"),
    ):
        found.search.step(state, column("logit", y), 1e-3, 10)
