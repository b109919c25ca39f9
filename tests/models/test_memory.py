"""The projection: its parts against what really is allocated, and the refusal. Peaks are measured in tests/engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor, worker_cache
from dkgp.cluster.cache import TileBudget
from dkgp.errors import ExitCode, MemoryBudgetError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.basis import BasisSettings
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.near import NearSettings
from dkgp.models.memory import RUNTIME_BYTES, Memory, Part, Processes, TrainingSizes, plan_training
from dkgp.models.prediction.sparse import plan_prediction
from dkgp.models.refinement.record import RefineSettings, plan_refinement
from dkgp.models.sparse.settings import plan_sparse
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.blocked import coordinator_input_bytes_needed
from dkgp.operators.keeping import kept_bytes_of
from dkgp.solvers import GreedyBlockCoordinateDescent
from dkgp.solvers.greedy_basis import GreedySettings
from dkgp.solvers.registry import SolverMemory

GIB = 1024**3


def planned(n: int = 50_000, d: int = 8, p: int = 1, **changed: Any) -> Memory:
    held = {"block_size": 1000, "candidates": 60, "memory": 5}
    solver = SolverMemory(**{name: changed.pop(name, value) for name, value in held.items()})
    holds_inputs = changed.pop("holds_inputs", True)
    here = Processes(resident_bytes=200_000_000, shares_process=True, overlaps=False, cache_bytes=2 * GIB)
    return plan_training(n, d, p, solver, replace(here, **changed), holds_inputs=holds_inputs)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("memory", [0, 1, 5, 12])
def test_vectors_cover_the_solvers_state_and_its_checkpoint(rng: np.random.Generator, p: int, memory: int) -> None:
    n, rhs = 3000, rng.normal(size=(3000, p))
    executor = LocalExecutor(1)
    with BlockedKernelOperator(
        SquaredExponential((0.5,) * 4), 0.1, ArrayInputs(rng.normal(size=(n, 4))), executor
    ) as op:
        solver = GreedyBlockCoordinateDescent(block_size=20, memory=memory)
        state = solver.start(op, rhs)
        for _ in range(memory + 2):
            solver.advance(op, state)
        parts = (*vars(state).values(), *vars(state.memory).values())
        held = {id(array): array for array in parts if isinstance(array, np.ndarray)}
        copies = [array for name, array in state.arrays().items() if id(array) not in held]
    executor.close()
    needed = sum(array.nbytes for array in (*held.values(), *copies))
    projected = planned(n, 4, p, memory=memory, block_size=20)["vectors_bytes"]
    assert 0.5 * projected < needed <= projected


@pytest.mark.parametrize("d", [1, 8, 40])
def test_inputs_cover_what_the_coordinator_holds(rng: np.random.Generator, d: int) -> None:
    n = 4000
    X = rng.normal(size=(n, d))
    executor = LocalExecutor(1)
    with BlockedKernelOperator(SquaredExponential((0.1,) * d), 0.1, ArrayInputs(X), executor) as operator:
        operator.features(np.arange(3, dtype=np.intp))
        held = operator._resident_rows.nbytes + operator._resident.nbytes  # type: ignore[union-attr]
    executor.close()
    # On top comes a float64 copy while the rows are put together.
    assert held + X.nbytes == pytest.approx(coordinator_input_bytes_needed(n, d), rel=0.01)


@pytest.mark.parametrize("d", [1, 8, 40])
def test_worker_bytes_cover_the_features_of_both_precisions(rng: np.random.Generator, d: int) -> None:
    n = 4000
    executor = LocalExecutor(1)
    before = worker_cache().nbytes
    operator = BlockedKernelOperator(
        SquaredExponential((0.1,) * d), 0.1, ArrayInputs(rng.normal(size=(n, d))), executor
    )
    for precision in ("single", "double"):
        operator.matmat(np.ones((n, 1)), precision)  # type: ignore[arg-type]
    cached = worker_cache().nbytes - before
    operator.close()
    executor.close()
    assert worker_cache().nbytes == before
    assert 0 < cached <= planned(n, d)["worker_bytes"]


@given(
    st.integers(1, 10**7),
    st.integers(1, 200),
    st.integers(1, 20),
    st.sampled_from(["n", "d", "p", "block_size", "candidates", "memory"]),
)
def test_more_of_anything_never_takes_less(n: int, d: int, p: int, what: str) -> None:
    sizes = {"n": n, "d": d, "p": p, "block_size": 500, "candidates": 60, "memory": 5}
    larger = {**sizes, what: 2 * sizes[what]}
    assert planned(**larger).coordinator_bytes >= planned(**sizes).coordinator_bytes


# --- all plans --------------------------------------------------------------------------------------------------------


def near(shares_process: bool) -> Any:
    return SimpleNamespace(threads_per_process=2, shares_memory=shares_process)


def of_labels(settings: Any, shares_process: bool, **options: Any) -> Memory:
    return settings.memory(TrainingSizes(50_000, 4, 1, near(shares_process), GIB), **options)


def refinement(shares_process: bool) -> Memory:
    settings, options = RefineSettings(rank=500), {"resident_bytes": 10**8, "holds_inputs": True, "cache_bytes": GIB}
    return plan_refinement(100_000, 8, 1, settings, near(shares_process), **options)  # type: ignore[arg-type]


# A plan for workers within the process or elsewhere, and the settings that its refusal names.
PLANS: dict[str, tuple[Callable[[bool], Memory], tuple[str, ...]]] = {
    "training": (lambda here: planned(shares_process=here), ("memory", "block_size", "candidates")),
    "sparse": (
        lambda here: plan_sparse(50_000, 4, 500, 1, near(here), GIB, greedy=GreedySettings(500)),
        ("basis_size", "per_round", "exhaustive"),
    ),
    "basis": (lambda here: of_labels(BasisSettings(500), here), ("basis_size",)),
    "neighbours": (lambda here: of_labels(NearSettings(500), here), ("basis_size",)),
    "fixed-size": (lambda here: of_labels(FixedSizeSettings(pool=500), here), ("pool", "folds", "max_basis")),
    "refinement": (refinement, ("refine_probes", "refine_rank")),
}
PREDICTIONS = {
    "means": plan_prediction((500, 4, 1), 2, False),
    "variances": plan_prediction((500, 4, 1), 2, True),
    "neighbours": plan_prediction((500, 4, 1), 2, True, (50_000, 64)),
    "labels": plan_prediction((500, 4, 3), 2, True, (50_000, 64), by_target=True),
}
every_plan = pytest.mark.parametrize("name", PLANS)


@every_plan
def test_a_process_holds_its_own_parts_and_the_json_lists_all(name: str) -> None:
    make, _ = PLANS[name]
    here, elsewhere = make(True), make(False)
    assert here.parts.keys() == elsewhere.parts.keys()
    places = {
        place: [part for part in here.parts.values() if part.place == place] for place in ("coordinator", "worker")
    }
    both = places["coordinator"] + places["worker"]
    for plan, present in ((here, both), (elsewhere, places["coordinator"])):
        of_phases = [sum(part.bytes for part in present if part.phase in ("", phase)) for phase in PHASES]
        assert plan.coordinator_bytes == RUNTIME_BYTES + max(of_phases)
    assert elsewhere.coordinator_bytes < here.coordinator_bytes
    assert here.worker_process_bytes(7) == 7 + RUNTIME_BYTES + sum(part.bytes for part in places["worker"])
    assert here.spare_bytes(here.coordinator_bytes + 5, 3) == 2
    assert elsewhere.spare_bytes(10**12) is None
    document = here.to_json()
    assert json.loads(json.dumps(document)) == document
    assert {name: document[name] for name in here.parts} == {name: here[name] for name in here.parts}
    assert document["coordinator_bytes"] == here.coordinator_bytes
    first = next(iter(here.parts))
    assert here.plus(**{first: 9})[first] == here[first] + 9
    assert here.plus(**{first: 9}).coordinator_bytes == here.coordinator_bytes + 9


PHASES = ("", "paths", "sums", "opening", "tasks")


@every_plan
@pytest.mark.parametrize("shares_process", [True, False])
def test_a_refusal_names_numbers_and_settings(name: str, shares_process: bool) -> None:
    make, settings = PLANS[name]
    plan, resident = make(shares_process), 3 * 10**8
    plan.require(plan.coordinator_bytes)
    plan.require(plan.coordinator_bytes + resident, resident)
    with pytest.raises(MemoryBudgetError) as caught:
        plan.require(plan.coordinator_bytes + resident - 1, resident)
    message = str(caught.value)
    assert f"need {(plan.coordinator_bytes + resident) / 1024**2:,.0f} MiB in " in message
    assert all(f"`{setting}`" in message for setting in settings)
    assert f"libraries and compiled code {RUNTIME_BYTES // 1024**2} MiB" in message
    assert (
        f"in use already {(resident + plan.parts.get('resident_bytes', Part(0)).bytes) / 1024**2:,.0f} MiB" in message
    )
    assert ("On a Dask cluster" in message) == ("workers" in message) == shares_process
    assert caught.value.exit_code is ExitCode.BAD_INPUT


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_model_is_opened_before_it_predicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PREDICTIONS[name]
    opening, predicting = (plan["model_bytes"] + plan[part] for part in ("opening_bytes", "tasks_bytes"))
    assert plan.coordinator_bytes == plan.worker_parts == max(opening, predicting)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=plan.coordinator_bytes - 1))
    with pytest.raises(
        MemoryBudgetError, match="in each worker's process; the budget is .*fewer basis samples"
    ) as caught:
        plan.require(None)
    assert ("`memory_bytes`" in str(caught.value)) == (name != "labels")
    assert ("means alone" in str(caught.value)) == (name in ("variances", "neighbours"))
    assert "libraries" not in str(caught.value)


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_kernel_matrix_is_in_none_of_it() -> None:
    n = 1_000_000
    assert planned(n, 10, shares_process=False).coordinator_bytes < 8 * n * n / 1000


def test_cached_features_stay_within_the_caches_budget() -> None:
    large = planned(10**8, 10, cache_bytes=GIB)
    assert large["worker_bytes"] < 1.1 * GIB


def test_tiles_take_what_is_of_use_and_half_of_what_is_left() -> None:
    plan = planned(20_000)
    whole = kept_bytes_of(20_000)
    assert 2 * 20_000**2 <= whole < 1.2 * 2 * 20_000**2

    def kept(wanted: TileBudget, spare: int) -> int:
        return plan.with_tiles(wanted, 20_000, plan.coordinator_bytes + spare)["tiles_bytes"]

    own = TileBudget(10**12, measured=True)
    assert kept(own, 10 * GIB) == whole
    assert kept(own, GIB) == GIB // 2
    assert kept(own, 0) == 0
    assert kept(TileBudget(GIB // 4, measured=True), GIB) == GIB // 4
    # Of dkgp's own, no more than products that are foreseen may come to pay for.
    assert kept(replace(own, products=30.0), 10 * GIB) == whole
    assert kept(replace(own, bytes=GIB // 8, products=2.0), 10 * GIB) == GIB // 8
    large = planned(100_000).with_tiles(replace(own, products=3.0), 100_000, 16 * GIB)
    assert large["tiles_bytes"] == GIB
    # A user's own figure is taken, or refused with numbers.
    assert kept(TileBudget(GIB // 2), GIB) == GIB // 2
    assert kept(TileBudget(10**12), 10 * GIB) == whole
    with pytest.raises(MemoryBudgetError, match=r"`cache_tiles` asks for 512 MiB .* 256 MiB are left") as caught:
        kept(TileBudget(GIB // 2), GIB // 4)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert plan.with_tiles(own, 20_000, 10**12).coordinator_bytes == plan.coordinator_bytes + whole


def test_tiles_of_other_processes_are_no_part_of_the_coordinators() -> None:
    plan = planned(20_000, shares_process=False)
    found = plan.with_tiles(TileBudget(GIB), 20_000, plan.coordinator_bytes)
    assert found["tiles_bytes"] == min(GIB, kept_bytes_of(20_000))
    assert found.coordinator_bytes == plan.coordinator_bytes
