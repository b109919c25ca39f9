"""Training on a basis with neighbours: columns, weights, checkpoints, ends, memory, and what is refused.

What all trainers keep to is asked in `tests/models/test_conformance.py`.

Newton's steps of labels on a basis with neighbours, against dense steps by their definition.

What workers keep of leaves between the steps to a mode: no bit depends on it.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.data import Dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError, NumericalError
from dkgp.kernels import Kernel, Matern32
from dkgp.models.classification import near as mode
from dkgp.models.classification.basis import BasisSettings, train_on_basis
from dkgp.models.classification.labels import LabelledData, Labels, label_weights
from dkgp.models.classification.likelihoods import Likelihood, Link
from dkgp.models.classification.near import (
    LOWER,
    MOST_HALVINGS,
    MOST_IDLE,
    ColumnLabels,
    ColumnState,
    Modes,
    NearSettings,
    TrainedNear,
    evidence,
    train_near,
)
from dkgp.models.classification.prototypes import BASES
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.memory import RUNTIME_BYTES, TrainingSizes
from dkgp.models.sparse.vif import KeptTerms, Neighbourhood, Neighbours, kept_bytes, rows_bytes
from dkgp.models.tuning.laplace import ColumnMode, column_mode
from dkgp.operators import ArrayInputs
from dkgp.operators.keeping import Keeping, worker_tiles
from dkgp.solvers import Checkpointing
from tests.models.classification.modes import (
    KERNEL,
    N,
    Step,
    column_labels,
    dense_step,
    derivatives,
    ended,
    exact,
    rows,
    searching,
)
from tests.models.classification.problems import noisy_sine
from tests.models.sparse.vif.dense_vif import covariance
from tests.workers import on_dask

TRAINED_KERNEL = Matern32((0.4, 0.4, 0.4), 6.0)


def trained(
    dataset: Dataset,
    labels: Labels,
    executor: LocalExecutor,
    *,
    kernel: Kernel = TRAINED_KERNEL,
    weights: np.ndarray | None = None,
    multi_class: Any = "ovr",
    given: np.ndarray | None = None,
    context: dict[str, Any] | None = None,
    **settings: Any,
) -> TrainedNear:
    return train_near(
        LabelledData(dataset, labels, weights),
        Hyperparameters(kernel, 1.0),
        RunContext(executor, **(context or {})),
        NearSettings(**{"size": 12, "neighbours": 16, **settings}),
        likelihood=Likelihood.of("logit", multi_class, labels.n_classes),
        given=given,
    )


@pytest.mark.long
def test_each_class_is_a_problem_of_its_own(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    """Against the rest: to the bits of two classes."""
    dataset, labels = noisy_sine(rng, 150, 3)
    given = np.arange(0, 150, 10)
    together = trained(dataset, labels, one_thread, given=given)
    evidence = 0.0
    for code in range(3):
        two = Labels(("rest", "it"), (labels.codes == code).astype(np.int64))
        alone = trained(dataset, two, one_thread, given=given)
        assert alone.values[:, 0].tobytes() == together.values[:, code].tobytes()
        np.testing.assert_allclose(alone.weights[:, 0], together.weights[:, code], rtol=1e-9)
        for name in ("targets", "noise", "whitened"):
            one, of_all = (getattr(model.near, name) for model in (alone, together))
            assert one[:, 0].tobytes() == of_all[:, code].tobytes(), name
        assert alone.near.normal[0].tobytes() == together.near.normal[code].tobytes()
        assert alone.summary["steps"] == [together.summary["steps"][code]]
        evidence += alone.summary["evidence"]
    assert together.summary["evidence"] == pytest.approx(evidence, rel=1e-12)
    assert together.summary["iterations"] == sum(together.summary["steps"])
    assert [progress["iteration"] for progress in together.history] == list(
        range(1, sum(together.summary["steps"]) + 1)
    )


def test_the_summary_is_of_what_was_found(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    dataset, labels = noisy_sine(rng, 150)
    found = trained(dataset, labels, one_thread, neighbours=4 * 150, tolerance=1e-7)
    X, y = dataset.inputs(0, 150), labels.signs()[:, 0]
    work = np.empty((150, 150), order="F")
    mode = column_mode(np.asarray(TRAINED_KERNEL(X, X)), y, found.likelihood.loss, work)
    assert mode is not None
    summary = found.summary
    assert summary["evidence"] == pytest.approx(mode.objective - np.log(np.diagonal(work)).sum(), abs=1e-6)
    assert summary["risk"] == pytest.approx(float(np.logaddexp(0.0, -y * mode.values).sum()), abs=1e-6)
    assert (summary["neighbours"], summary["neighbours_unproven"], summary["basis_size"]) == (150, 0.0, 12)
    assert summary["converged"]
    assert summary["decision_error"][0] <= 1e-7
    assert "decisions changed by" in summary["reason"]
    Z = found.prototypes
    Q = np.asarray(TRAINED_KERNEL(X, Z)) @ np.linalg.solve(
        np.asarray(TRAINED_KERNEL(Z, Z)), np.asarray(TRAINED_KERNEL(Z, X))
    )
    assert summary["left"] == pytest.approx(1.0 - np.trace(Q) / (150 * 6.0), abs=1e-8)
    # Weights are of the basis' part alone: L^-T z.
    np.testing.assert_allclose(found.kernel_lower.T @ found.weights, found.near.whitened, atol=1e-9)
    np.testing.assert_allclose(
        found.kernel_lower @ found.kernel_lower.T,
        np.asarray(TRAINED_KERNEL(found.prototypes, found.prototypes)),
        atol=1e-6,
    )
    changes = [progress["relative_residual"] for progress in found.history]
    assert changes[-1] == summary["decision_error"][0]
    assert sorted(changes, reverse=True) == changes
    psi = [progress["objective"] for progress in found.history]
    assert psi[-1] == pytest.approx(-mode.objective, rel=1e-9)
    entries = [progress["kernel_evaluations"] for progress in found.history]
    assert sorted(set(entries)) == entries


def test_weights_count(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    """As so many samples: of a model that nothing is left out of, weights are repetitions."""
    dataset, labels = noisy_sine(rng, 60)
    times = rng.integers(1, 4, 60)
    more = {"given": np.arange(10), "neighbours": 10_000, "tolerance": 1e-8}
    weighted = trained(dataset, labels, one_thread, weights=times.astype(np.float64), **more)
    X = dataset.inputs(0, 60).repeat(times, axis=0)
    codes = labels.codes.repeat(times)
    work = np.empty((len(X), len(X)), order="F")
    mode = column_mode(np.asarray(TRAINED_KERNEL(X, X)), 2.0 * codes - 1.0, weighted.likelihood.loss, work)
    assert mode is not None
    np.testing.assert_allclose(weighted.values[:, 0].repeat(times), mode.values, atol=1e-6)
    balanced = trained(dataset, labels, one_thread, weights=label_weights(labels, "balanced"))
    assert balanced.summary["converged"]


@pytest.mark.spread(3)
@pytest.mark.parametrize("basis", BASES)
def test_every_basis(basis: str, rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    dataset, labels = noisy_sine(rng, 150)
    found = trained(dataset, labels, one_thread, basis=basis)
    assert found.summary["converged"]
    assert found.summary["basis"] == basis
    assert found.summary["neighbours"] == found.near.size == 16
    # As for the basis alone: by labels whose noise is the least that there may be.
    alone = train_on_basis(
        LabelledData(dataset, labels),
        Hyperparameters(TRAINED_KERNEL, 1.0),
        one_thread,
        BasisSettings(12, basis, tolerance=0.1),
        likelihood=found.likelihood,
        form="gp",
    )
    np.testing.assert_array_equal(found.prototypes, alone.prototypes)
    assert 8 <= len(found.prototypes) <= 12
    if found.indices is not None:
        np.testing.assert_array_equal(dataset.inputs(0, 150)[found.indices], found.prototypes)


def test_a_basis_of_ones_own(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    dataset, labels = noisy_sine(rng, 100)
    for given in (np.arange(10, 20), rng.standard_normal((7, 3))):
        found = trained(dataset, labels, one_thread, given=given)
        assert found.summary["basis"] == "given"
        assert len(found.prototypes) == len(given)


def test_what_does_not_end_says_so(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    dataset, labels = noisy_sine(rng, 150, 3)
    found = trained(dataset, labels, one_thread, max_iterations=2)
    assert not found.summary["converged"]
    assert found.summary["steps"] == [2, 2, 2]
    worst = max(found.summary["decision_error"])
    assert found.summary["reason"] == f"2 steps; decisions still changed by {worst:.3g} > 0.001"
    assert "more `neighbours`" in found.summary["advice"]


def test_a_checkpoint_of_a_first_step_that_was_not_taken_is_whole(
    rng: np.random.Generator, one_thread: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that stalls at once leaves it; the run says that it did not end."""
    dataset, labels = noisy_sine(rng, 100)
    monkeypatch.setattr("dkgp.models.classification.near.SLACK", -1.0)
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    found = []
    for resume in (False, True):
        checkpointing = Checkpointing(store, 0.0, resume=resume)
        found.append(trained(dataset, labels, one_thread, context={"checkpointing": checkpointing}))
    assert found[0].summary["steps"] == found[1].summary["steps"] == [1]
    assert not found[0].summary["converged"]
    assert found[0].near.targets.tobytes() == found[1].near.targets.tobytes()
    assert found[0].summary["evidence"] == found[1].summary["evidence"]


def test_an_interruption_is_heeded_within_a_step_and_between_two(
    rng: np.random.Generator, one_thread: LocalExecutor, tmp_path: Path
) -> None:
    dataset, labels = noisy_sine(rng, 150)
    whole = trained(dataset, labels, one_thread)
    assert whole.summary["iterations"] >= 4
    # Not saved by time: by the interruption alone.
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    told: list[Any] = []
    context = {
        "callback": told.append,
        "checkpointing": Checkpointing(store, 1e9),
        "interrupted": lambda: len(told) > 2,
    }
    with pytest.raises(InterruptedRunError, match=r"after 3 steps; 3 steps are saved in"):
        trained(dataset, labels, one_thread, context=context)
    resumed = trained(dataset, labels, one_thread, context={"checkpointing": Checkpointing(store, 1e9, resume=True)})
    assert resumed.values.tobytes() == whole.values.tobytes()
    assert resumed.near.normal.tobytes() == whole.near.normal.tobytes()
    assert resumed.summary["evidence"] == whole.summary["evidence"]
    assert [one["objective"] for one in resumed.history] == [one["objective"] for one in whole.history]
    # A version that shortened steps, and held no noise, left this.
    before = store.load_latest()
    assert before is not None
    for column in before.metadata["state"]["columns"]:
        column["length"] = 0.5
        del column["held"]
        column.pop("lowest", None)
    signs = labels.signs()[:, 0]
    restored = Modes(None, [column_labels("logit", signs)], NearSettings(), before.arrays["prototypes"], None)  # type: ignore[arg-type]
    restored.resume(before)
    assert restored.iteration == whole.summary["iterations"]
    assert (restored.columns[0].held, restored.columns[0].lowest) == (False, np.inf)
    # The end is saved too, and gives the same model once more.
    latest = store.load_latest()
    assert latest is not None
    assert latest.metadata["state"]["iteration"] == whole.summary["iterations"]
    again = trained(dataset, labels, one_thread, context={"checkpointing": Checkpointing(store, 1e9, resume=True)})
    assert again.near.whitened.tobytes() == whole.near.whitened.tobytes()
    assert again.summary["evidence"] == whole.summary["evidence"]
    with pytest.raises(InterruptedRunError, match="nothing was saved"):
        trained(dataset, labels, one_thread, context={"interrupted": lambda: True})


@pytest.mark.long
def test_held_noise_is_resumed_with(rng: np.random.Generator, one_thread: LocalExecutor, tmp_path: Path) -> None:
    """Neighbours so few, and an amplitude so large, that steps go to and fro; interrupted after each step."""
    dataset, labels = noisy_sine(rng, 100)
    hard: dict[str, Any] = {"kernel": Matern32((0.4, 0.4, 0.4), 1e4), "size": 1, "neighbours": 2}
    whole = trained(dataset, labels, one_thread, **hard)
    store, held = CheckpointStore(str(tmp_path / "checkpoints")), []
    while True:
        seen: list[Any] = []
        context = {
            "callback": seen.append,
            "checkpointing": Checkpointing(store, 1e9, resume=bool(held)),
            "interrupted": lambda seen=seen: bool(seen),
        }
        try:
            resumed = trained(dataset, labels, one_thread, context=context, **hard)
        except InterruptedRunError:
            latest = store.load_latest()
            assert latest is not None
            held.append(latest.metadata["state"]["columns"][0]["held"])
        else:
            break
    assert len(held) == whole.summary["iterations"] - 1
    assert held.index(True) < len(held) - 2
    assert resumed.values.tobytes() == whole.values.tobytes()
    assert resumed.summary["evidence"] == whole.summary["evidence"]
    assert [one["objective"] for one in resumed.history] == [one["objective"] for one in whole.history]


def test_what_is_refused(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    dataset, labels = noisy_sine(rng, 50, 3)
    for words, call in (
        (r"`neighbours` must be at least 1; got 0", lambda: NearSettings(neighbours=0)),
        (r"`searched` must be at least 1; got 0", lambda: NearSettings(searched=0)),
        (r"`size` must be at least 1; got 0", lambda: NearSettings(0)),
        (r"there are no proofs for a basis with `neighbours`", lambda: NearSettings(certify=True)),
        (r"softmax couples the classes", lambda: trained(dataset, labels, one_thread, multi_class="softmax")),
        (r"features", lambda: trained(dataset, labels, one_thread, kernel=Matern32((1.0,)))),
    ):
        with pytest.raises(InputError, match=words):
            call()
    # Softmax of two classes is logit.
    dataset, labels = noisy_sine(rng, 50)
    assert trained(dataset, labels, one_thread, multi_class="softmax").summary["converged"]


@pytest.mark.long
@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_memory_is_what_is_planned_at_most(classes: int, rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    n, m = 3_000, 40
    X = rng.standard_normal((n, 3))
    codes = np.digitize(X[:, 0] + 0.5 * rng.standard_normal(n), np.linspace(-0.5, 0.5, classes - 1))
    dataset = memory_dataset(X, codes.astype(np.float64))
    labels = Labels(tuple("abc"[:classes]), codes.astype(np.int64))
    settings = {"size": m, "basis": "uniform", "neighbours": 16, "max_iterations": 1}
    plan = NearSettings(**settings).memory(TrainingSizes(n, 3, labels.n_outputs, one_thread, 2**28))
    planned = plan.coordinator_bytes - RUNTIME_BYTES
    trained(*noisy_sine(rng, 200), one_thread)  # compiled, and imported
    tracemalloc.start()
    trained(dataset, labels, one_thread, **settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.2 * planned < peak < planned
    with pytest.raises(MemoryBudgetError, match="40 basis samples"):
        plan.require(planned // 2)


def test_the_plan_knows_what_a_class_and_a_neighbour_take(one_thread: LocalExecutor) -> None:
    def plan(t: int = 1, **settings: int) -> Any:
        return NearSettings(500, **settings).memory(TrainingSizes(10**5, 5, t, one_thread, 2**28))

    one, ten = plan(), plan(10)
    # Triangle, its copy in the model, and the vectors of a column.
    assert ten["matrices_bytes"] - one["matrices_bytes"] == 9 * 2 * 8 * 500**2
    assert ten["vectors_bytes"] - one["vectors_bytes"] >= 9 * 8 * 10**5 * 6
    assert ten["worker_bytes"] == one["worker_bytes"]
    assert plan(neighbours=1024)["worker_bytes"] > one["worker_bytes"]


EVERYTHING, FEW = Neighbours(8, N), Neighbours(6, 10)
both_links = pytest.mark.parametrize("link", ["logit", "probit"])
by_weight = pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])


def weights_of(weighted: bool) -> np.ndarray | None:
    return np.random.default_rng(2).uniform(0.1, 3.0, N) if weighted else None


def far_on_the_wrong_side(labels: ColumnLabels) -> ColumnState:
    """Return a state with the exact covariance, f = K a, at values up to 18."""
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
    labels, each = column_labels(link, y, w), np.ones(N) if w is None else w
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
    found = column_mode(np.asarray(KERNEL(X, X)), y, column_labels(link, y).loss, work, w)
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
        state = ended(found.search, column_labels(link, y, w))
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
    labels, each = column_labels(link, y, w), np.ones(N) if w is None else w
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
    labels = column_labels("logit", y)
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
    labels = column_labels("logit", y)
    np.testing.assert_array_equal(labels.curvature(np.full(N, 60.0)), 1e-10)
    w = np.ones(N)
    w[::5] = 0.0
    np.testing.assert_array_equal(column_labels("logit", y, w).curvature(np.zeros(N))[::5], 1e-10)
    with searching(one_thread, EVERYTHING) as found:
        state = ended(found.search, column_labels("logit", y, w), 1e-6)
    kept = w > 0.0
    mode, value = dense_mode(y[kept], "logit", None, X[kept])
    np.testing.assert_allclose(state.values[kept], mode.values, atol=1e-5)
    # What nobody has labelled follows from the others.
    np.testing.assert_allclose(state.values[~kept], np.asarray(KERNEL(X[~kept], X[kept])) @ mode.alpha, atol=1e-5)
    assert evidence(state) == pytest.approx(value, abs=1e-4)


def test_labels_that_are_told_apart_without_an_end_end_by_steps(one_thread: LocalExecutor) -> None:
    """The function has no upper limit; each step raises it by about one."""
    X, _, _ = rows()
    labels = column_labels("logit", np.where(X[:, 0] > 0.0, 1.0, -1.0))
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
    labels = column_labels("logit", y)
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
    labels = column_labels("logit", y)
    f = np.linspace(-4.0, 4.0, N)
    curvature = derivatives("logit", y, f)[2]
    last = curvature * np.where(np.arange(N) % 2, 1.01, 0.99) / 1.5
    state = ColumnState(f, np.zeros(N), 0.0, noise=1.0 / last)
    np.testing.assert_array_equal(state.next_curvature(labels), labels.curvature(f))
    state.held = True
    np.testing.assert_allclose(state.next_curvature(labels), np.where(np.arange(N) % 2, last, curvature), rtol=1e-12)


def test_a_step_that_no_halving_helps_is_not_taken(one_thread: LocalExecutor) -> None:
    """psi is zero and each step raises the objective: the coefficients belong to another covariance."""
    _, y, _ = rows()
    calls = []

    class Counted(ColumnLabels):
        def risk(self, values: np.ndarray) -> float:
            calls.append(values)
            return super().risk(values)

    plain = column_labels("logit", y)
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "amplitude", "scale"),
    [("probit", 6.0, 0.3), pytest.param("logit", 1e4, 1.0, marks=pytest.mark.long)],
    ids=["many samples within a length scale", "a large amplitude"],
)
def test_steps_that_have_no_end_have_one_with_held_noise(
    link: Link, amplitude: float, scale: float, one_thread: LocalExecutor
) -> None:
    """One neighbour for each sample; each step by a dense Sigma. A hundred whose noise is not held are not enough."""
    (X, y, Z), labels, kernel = rows(), column_labels(link, rows()[1]), Matern32((1.5, 0.7), amplitude)
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
    labels, start = column_labels("logit", y), ColumnState.start(column_labels("logit", y))
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
        found.search.step(state, column_labels("logit", y), 1e-3, 10)


KEPT_N, M, NEIGHBOURS = 700, 12, 32
ALL = kept_bytes(KEPT_N, M, Neighbours.of(NEIGHBOURS))
# T of a bundle; T of all, and matrices of some bundles; everything.
BUDGETS = (8 * 32 * 32, ALL // 2, ALL)


def trained_keeping(executor: Any, budget: int) -> TrainedNear:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((KEPT_N, 2))
    codes = (np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(KEPT_N) > 0.0).astype(np.int64)
    labels = Labels(("a", "b"), codes)
    data = LabelledData(memory_dataset(X, codes, classes=labels.classes), labels)
    executor.tiles = TileBudget(budget)
    settings = NearSettings(M, neighbours=NEIGHBOURS)
    hyperparameters = Hyperparameters(Matern32((1.0, 1.0), 4.0), 1.0)
    return train_near(data, hyperparameters, executor, settings, likelihood=Likelihood.of("logit", "ovr", 2))


def same(found: TrainedNear, expected: TrainedNear) -> None:
    for name in ("targets", "noise", "whitened", "normal"):
        np.testing.assert_array_equal(getattr(found.near, name), getattr(expected.near, name))
    np.testing.assert_array_equal(found.values, expected.values)


@pytest.mark.long
def test_no_bit_depends_on_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    step = mode.ModeSearch.step

    def noted(*arguments: Any) -> None:
        step(*arguments)
        held.append(worker_tiles().nbytes)

    monkeypatch.setattr(mode.ModeSearch, "step", noted)
    expected = trained_keeping(LocalExecutor(2), 0)
    assert max(held) == 0
    entries = [expected.summary["kernel_evaluations"]]
    for budget in BUDGETS:
        held.clear()
        found = trained_keeping(LocalExecutor(2), budget)
        same(found, expected)
        assert 0 < max(held) <= budget
        assert worker_tiles().nbytes == 0  # forgotten
        entries.append(found.summary["kernel_evaluations"])
    # The more is kept, the fewer entries are evaluated: in the end none after the second step.
    assert all(more > fewer for more, fewer in itertools.pairwise(entries))
    assert len({record["kernel_evaluations"] for record in found.history[1:]}) == 1


@pytest.mark.long
def test_a_cluster_keeps_it_too() -> None:
    expected = trained_keeping(LocalExecutor(1), 0)
    with on_dask(2, processes=False) as (executor, _):
        found = trained_keeping(executor, ALL)
    same(found, expected)
    assert found.summary["kernel_evaluations"] < 0.5 * expected.summary["kernel_evaluations"]


def test_rows_of_another_noise_are_not_taken() -> None:
    rng = np.random.default_rng(6)
    X, Y, s2 = rng.standard_normal((90, 2)), rng.standard_normal((90, 1)), rng.uniform(1.0, 5.0, 90)
    with RunContext.of(LocalExecutor(1)).operator(Matern32((1.0, 1.0), 2.0), 1.0, ArrayInputs(X)) as operator:
        held = Neighbourhood(operator, Neighbours(8, 16))
        plain = held.described(operator, X[:5])
        terms = KeptTerms("of-a-test", Keeping(TileBudget(2**24), 1), rows_bytes(90, held.leaves))
        keeping = type(plain)(plain.leaves, plain.context, plain.prototypes, terms)
        try:
            for noise in (s2, s2 + 1.0):
                noisy = operator.with_noise(noise)
                expected = held.joint(noisy, plain, Y)
                joint = held.joint(noisy, keeping, Y)
                np.testing.assert_array_equal(joint.normal, expected.normal)
                for other in (noise, noise + 0.5):
                    by = operator.with_noise(other)
                    np.testing.assert_array_equal(
                        held.weights(by, keeping, joint, Y), held.weights(by, plain, joint, Y)
                    )
        finally:
            worker_tiles().discard_run("of-a-test")
