"""Training on a basis with neighbours: columns, weights, checkpoints, ends, memory, and what is refused.

What all trainers keep to is asked in `tests/models/test_conformance.py`.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import CheckpointError, InputError, InterruptedRunError, MemoryBudgetError
from dkgp.kernels import Kernel, Matern32
from dkgp.models.classification.basis import BASES, BasisSettings, train_on_basis
from dkgp.models.classification.labels import LabelledData, Labels, label_weights
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.near import NearSettings, TrainedNear, _State, train_near
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.memory import TrainingSizes
from dkgp.models.tuning.laplace.columns import column_mode
from dkgp.solvers import Checkpointing
from tests.models.classification.problems import noisy_sine

KERNEL = Matern32((0.4, 0.4, 0.4), 6.0)


def trained(
    dataset: Dataset,
    labels: Labels,
    executor: LocalExecutor,
    *,
    kernel: Kernel = KERNEL,
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
    mode = column_mode(np.asarray(KERNEL(X, X)), y, found.likelihood.loss, work)
    assert mode is not None
    summary = found.summary
    assert summary["evidence"] == pytest.approx(mode.objective - np.log(np.diagonal(work)).sum(), abs=1e-6)
    assert summary["risk"] == pytest.approx(float(np.logaddexp(0.0, -y * mode.values).sum()), abs=1e-6)
    assert (summary["neighbours"], summary["neighbours_unproven"], summary["basis_size"]) == (150, 0.0, 12)
    assert summary["converged"]
    assert summary["decision_error"][0] <= 1e-7
    assert "decisions changed by" in summary["reason"]
    Z = found.prototypes
    Q = np.asarray(KERNEL(X, Z)) @ np.linalg.solve(np.asarray(KERNEL(Z, Z)), np.asarray(KERNEL(Z, X)))
    assert summary["left"] == pytest.approx(1.0 - np.trace(Q) / (150 * 6.0), abs=1e-8)
    # Weights are of the basis' part alone: L^-T z.
    np.testing.assert_allclose(found.kernel_lower.T @ found.weights, found.near.whitened, atol=1e-9)
    np.testing.assert_allclose(
        found.kernel_lower @ found.kernel_lower.T, np.asarray(KERNEL(found.prototypes, found.prototypes)), atol=1e-6
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
    mode = column_mode(np.asarray(KERNEL(X, X)), 2.0 * codes - 1.0, weighted.likelihood.loss, work)
    assert mode is not None
    np.testing.assert_allclose(weighted.values[:, 0].repeat(times), mode.values, atol=1e-6)
    balanced = trained(dataset, labels, one_thread, weights=label_weights(labels, "balanced"))
    assert balanced.summary["converged"]


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
        Hyperparameters(KERNEL, 1.0),
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
    restored = _State.restored(before.metadata["state"], before.arrays)
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


def test_a_checkpoint_of_another_run_is_refused(
    rng: np.random.Generator, one_thread: LocalExecutor, tmp_path: Path
) -> None:
    dataset, labels = noisy_sine(rng, 100)
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    trained(dataset, labels, one_thread, context={"checkpointing": Checkpointing(store, 0.0)})
    resume = {"checkpointing": Checkpointing(store, 0.0, resume=True)}
    others: list[dict[str, Any]] = [
        {"neighbours": 20},
        {"searched": 50},
        {"size": 11},
        {"tolerance": 1e-4},
        {"weights": np.linspace(0.5, 1.5, 100)},
        {"given": np.arange(12)},
    ]
    for other in others:
        with pytest.raises(CheckpointError, match="another run"):
            trained(dataset, labels, one_thread, context=resume, **other)


def test_what_is_refused(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    dataset, labels = noisy_sine(rng, 50, 3)
    for words, call in (
        (r"`neighbours` must be at least 1; got 0", lambda: NearSettings(neighbours=0)),
        (r"`searched` must be at least 1; got 0", lambda: NearSettings(searched=0)),
        (r"`size` must be at least 1; got 0", lambda: NearSettings(0)),
        (r"nothing is proven of a basis with `neighbours`", lambda: NearSettings(certify=True)),
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
    planned = plan.coordinator_parts + plan.worker_parts
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
    assert ten.matrices_bytes - one.matrices_bytes == 9 * 2 * 8 * 500**2
    assert ten.vectors_bytes - one.vectors_bytes >= 9 * 8 * 10**5 * 6
    assert ten.worker_bytes == one.worker_bytes
    assert plan(neighbours=1024).worker_bytes > one.worker_bytes
