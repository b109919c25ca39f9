"""The search by a sparse model's evidence: where it ends, what it survives, and how it is resumed."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, memory_dataset
from dkgp.errors import CheckpointError, InputError, InterruptedRunError, MemoryBudgetError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, read_hyperparameters, tune, write_hyperparameters
from dkgp.models.sparse import search as search_module
from dkgp.models.sparse.bound import BoundObjective, BoundValue
from dkgp.models.sparse.search import DRAWS, SearchStore, plan_bound, tune_by_bound
from dkgp.models.sparse.vif import HALO, Neighbours, VifObjective
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.operators import ArrayInputs
from dkgp.solvers import Checkpointing
from tests.resuming import Wish
from tests.watching import in_context

N, D = 300, 2


def arrays(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, D))
    y = np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(n)
    return X, y / y.std()


def searched(dataset: Dataset, executor: Any, **options: Any) -> Hyperparameters:
    """`tune_by_bound`, its keywords sorted into the context, what may move, and the search."""
    # The search's own note, before the context takes one.
    own = {name: options.pop(name) for name in ("objective", "basis_size", "note") if name in options}
    context = in_context(executor, options)
    choices, settings = (
        part(**{item.name: options[item.name] for item in fields(part) if item.name in options})
        for part in (Choices, SearchSettings)
    )
    return tune_by_bound(dataset, context, choices, settings, **own)


@pytest.fixture
def dataset() -> Dataset:
    return memory_dataset(*arrays())


def values(found: Hyperparameters) -> np.ndarray:
    return np.array([*(parameter.value for parameter in found.kernel.parameters()), found.noise_variance])


def plain(found: Hyperparameters) -> Hyperparameters:
    return replace(found, seconds=None)


@pytest.mark.spread(1)
@pytest.mark.parametrize("objective", ["bound", "fitc", "vif"])
def test_all_samples_as_the_basis_find_what_the_likelihood_of_all_finds(
    objective: Any, one_thread: LocalExecutor
) -> None:
    X, y = arrays(80)
    dataset = memory_dataset(X, y)
    found = searched(dataset, one_thread, objective=objective, basis_size=80, tolerance=1e-6)
    exact = tune(dataset.inputs(0, 80), dataset.all_targets(), subset=80, tolerance=1e-6)
    assert found.sparse["value"] == pytest.approx(exact.log_marginal_likelihood, abs=1e-3)
    np.testing.assert_allclose(values(found)[[0, -1]], values(exact)[[0, -1]], rtol=1e-2)
    assert (found.objective, found.converged, found.n_samples) == (objective, True, 80)


def test_what_is_found_is_a_maximum_and_never_above_the_likelihood(dataset: Dataset, one_thread: LocalExecutor) -> None:
    found = searched(dataset, one_thread, basis_size=12, tolerance=1e-7, learn_variance=True)
    samples = np.array(found.sparse["samples"])
    assert len(samples) == found.sparse["basis_size"] <= 12
    X, Y = dataset.inputs(0, N), dataset.all_targets()
    at = BoundObjective(ArrayInputs(X), Y, one_thread)(found.kernel, found.noise_variance, X[samples])
    assert at.value == found.sparse["value"]
    assert at.unexplained == found.sparse["left"]
    # The feature that does not matter slides towards a gamma of nothing; all else is stationary.
    assert np.abs(np.delete(at.gradient, 1)).max() < 0.05
    Kbar = found.kernel(X, X) + found.noise_variance * np.eye(N)
    exact = -0.5 * (np.sum(Y * np.linalg.solve(Kbar, Y)) + np.linalg.slogdet(2.0 * np.pi * Kbar)[1])
    assert at.value < exact


@pytest.mark.long
def test_bases_are_chosen_again_while_the_bound_grows(dataset: Dataset, one_thread: LocalExecutor) -> None:
    told: list[str] = []
    found = searched(dataset, one_thread, basis_size=6, note=told.append)
    rounds = found.sparse["rounds"]
    assert len(rounds) == len(told) > 1
    grown = np.diff([each["value"] for each in rounds])
    assert (grown > 1e-4 * abs(rounds[0]["value"])).all()
    assert found.sparse["value"] == rounds[-1]["value"]
    # Each round begins where another draw was better; the last one is followed by draws that are not.
    drawn = found.evaluations - sum(each["evaluations"] for each in rounds)
    assert len(rounds) - 1 + DRAWS <= drawn <= DRAWS * len(rounds)
    assert plain(searched(dataset, one_thread, basis_size=6)) == plain(found)
    other = searched(dataset, one_thread, basis_size=6, seed=1)
    assert other.sparse["samples"] != found.sparse["samples"]


def test_a_basis_that_cannot_follow_is_warned_of(one_thread: LocalExecutor) -> None:
    X, y = arrays(200)
    rough = {"gamma*": (2.0, 20.0)}
    few, many = (searched(memory_dataset(X, y), one_thread, basis_size=size, bounds=rough) for size in (3, 150))
    assert any("3 basis samples leave" in message and "larger basis" in message for message in few.warnings)
    assert not any("basis samples leave" in message for message in many.warnings)
    assert few.noise_variance > 1.5 * many.noise_variance


@pytest.mark.long
def test_more_starting_points_keep_the_best(dataset: Dataset, one_thread: LocalExecutor) -> None:
    one, three = (searched(dataset, one_thread, basis_size=10, restarts=count) for count in (1, 3))
    assert {each["start"] for each in three.sparse["rounds"]} == {0, 1, 2}
    best = max(three.sparse["rounds"], key=lambda each: each["value"])
    assert three.sparse["value"] == best["value"] >= one.sparse["value"]
    assert three.sparse["basis_size"] == len(three.sparse["samples"]) == best["basis_size"]


@pytest.mark.long
def test_kernels_bounds_fixed_values_priors_and_white_noise(dataset: Dataset, one_thread: LocalExecutor) -> None:
    found = searched(
        dataset,
        one_thread,
        kernel="matern32 + 0.5 * linear + white",
        basis_size=10,
        bounds={"*gamma*": (0.1, 5.0)},
        fixed={"noise_variance": 0.05},
        priors={"*linear.scale": "lognormal(0.1, 1)"},
    )
    assert found.noise_variance == pytest.approx(0.05)
    told = {parameter.name: parameter for parameter in found.parameters or ()}
    assert told["noise_variance"].fixed
    assert all(0.1 <= each.value <= 5.0 for name, each in told.items() if "gamma" in name)
    assert found.log_prior is not None
    alone = searched(dataset, one_thread, basis_size=10, fixed={"*": 0.5})
    assert (alone.evaluations, alone.converged) == (1, True)


def test_where_the_evidence_does_not_exist_the_search_steps_back(
    dataset: Dataset, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, refused = BoundObjective.__call__, []

    def brittle(self: BoundObjective, kernel: Any, noise_variance: float, basis: np.ndarray) -> BoundValue:
        if noise_variance < 0.2:
            refused.append(noise_variance)
            raise NumericalError("rounding exceeds the noise variance")
        return own(self, kernel, noise_variance, basis)

    monkeypatch.setattr(BoundObjective, "__call__", brittle)
    found = searched(dataset, one_thread, basis_size=10)
    assert refused
    assert found.noise_variance >= 0.2
    monkeypatch.setattr(BoundObjective, "__call__", lambda *given: brittle(given[0], given[1], 0.1, given[3]))
    with pytest.raises(NumericalError, match="existed at no starting point: rounding exceeds the noise variance"):
        searched(dataset, one_thread, basis_size=10)


def test_noise_at_its_lower_bound_survives(one_thread: LocalExecutor) -> None:
    """Targets without noise, a smooth kernel, and samples that are there twice: rounding is near."""
    X, _ = arrays(100)
    X = np.repeat(X, 2, axis=0)
    found = searched(memory_dataset(X, X[:, 0] + 0.1 * X[:, 1] ** 2), one_thread, basis_size=60)
    assert found.noise_variance < 1e-4
    assert np.isfinite(found.sparse["value"])
    assert len(np.unique(X[found.sparse["samples"]], axis=0)) == found.sparse["basis_size"]


def test_mere_noise_is_said_to_be(one_thread: LocalExecutor, rng: np.random.Generator) -> None:
    found = searched(memory_dataset(rng.standard_normal((200, 2)), rng.standard_normal(200)), one_thread, basis_size=8)
    assert any("no structure found" in message for message in found.warnings)
    assert len({each["start"] for each in found.sparse["rounds"]}) > 1  # others were tried


RUN = {"seed": 0, "kernel": None}


def saved_in(folder: Path, resume: bool = False, every_seconds: float = 1e9) -> Checkpointing:
    return Checkpointing(SearchStore(folder / "search"), every_seconds, RUN, resume)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The noise variances of all evaluations of the bound from now on."""
    calls, own = list[float](), BoundObjective.__call__

    def counted(self: BoundObjective, kernel: Any, noise_variance: float, basis: np.ndarray) -> BoundValue:
        calls.append(noise_variance)
        return own(self, kernel, noise_variance, basis)

    monkeypatch.setattr(BoundObjective, "__call__", counted)
    return calls


@pytest.mark.spread(1)
@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.slow), 7, 60])
def test_a_search_that_is_interrupted_is_resumed_to_the_same_bits(
    dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path, after: int, evaluated: list[float]
) -> None:
    expected = plain(searched(dataset, one_thread, basis_size=8))
    whole = len(evaluated)
    with pytest.raises(InterruptedRunError, match=f"evaluations are saved in {tmp_path}/search"):
        searched(dataset, one_thread, basis_size=8, checkpointing=saved_in(tmp_path), interrupted=Wish(after))
    done = saved_in(tmp_path, resume=True).latest()
    assert done is not None
    assert done.sequence_number == len(done.metadata["state"]["evaluations"]) < whole
    again = searched(dataset, one_thread, basis_size=8, checkpointing=saved_in(tmp_path, resume=True))
    assert plain(again) == expected
    # Each point is evaluated once; the one under way at the interruption may have been begun.
    assert len(evaluated) - 2 * whole in (0, 1)


def test_an_error_loses_no_evaluation(
    dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path, evaluated: list[float]
) -> None:
    def broken(progress: Any) -> None:
        if len(evaluated) > 5:
            raise OSError("a worker is lost")

    with pytest.raises(OSError, match="a worker is lost"):
        searched(dataset, one_thread, basis_size=8, checkpointing=saved_in(tmp_path), within=broken)
    latest = saved_in(tmp_path, resume=True).latest()
    assert latest is not None
    assert latest.sequence_number == 5


def test_an_interruption_without_checkpoints_says_that_nothing_is_saved(
    dataset: Dataset, one_thread: LocalExecutor
) -> None:
    with pytest.raises(InterruptedRunError, match="nothing was saved"):
        searched(dataset, one_thread, basis_size=8, interrupted=Wish(20))


def test_a_checkpoint_of_an_earlier_version_is_one_file(
    dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path, evaluated: list[float]
) -> None:
    searched(dataset, one_thread, basis_size=8, checkpointing=saved_in(tmp_path))
    expected = plain(searched(dataset, one_thread, basis_size=8))
    latest = saved_in(tmp_path, resume=True).latest()
    assert latest is not None
    shutil.rmtree(tmp_path / "search")
    evaluations = latest.metadata["state"]["evaluations"]
    cut = dict(list(evaluations.items())[:-3])
    (tmp_path / "search").write_text(json.dumps({"run": RUN, "evaluations": cut}))
    evaluated.clear()
    again = searched(dataset, one_thread, basis_size=8, checkpointing=saved_in(tmp_path, resume=True))
    assert plain(again) == expected
    assert len(evaluated) == 3
    # From now on it is a folder.
    written = saved_in(tmp_path, resume=True).latest()
    assert written is not None
    assert written.metadata["state"]["evaluations"] == evaluations


def test_checkpoints_of_other_runs_and_damaged_ones(
    dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path
) -> None:
    file = tmp_path / "search"
    starts = base64.b64encode(np.ones(6, dtype="<f4").tobytes()).decode()
    held = {"run": RUN, "evaluations": {"a": None, "b": [-1.0 / 3.0, [0.1, 1e-300], 0.25]}}
    file.write_text(json.dumps({**held, "start": {"columns": 3, "values": starts}}))
    latest = SearchStore(file).load_latest()
    assert latest is not None
    np.testing.assert_array_equal(latest.arrays["begin"], np.ones((2, 3), dtype=np.float32))
    assert latest.metadata["state"]["evaluations"] == held["evaluations"]
    other = Checkpointing(SearchStore(file), identity={"seed": 1}, resume=True)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        searched(dataset, one_thread, basis_size=8, checkpointing=other)
    damaged = [json.dumps({**held, "start": {"columns": 3, "values": values}}) for values in (starts[:-2], "no base64")]
    for content in ("{", "[]", '{"run": {"seed": 0}}', '{"run": {"seed": 0}, "evaluations": {"a": 3}}', *damaged):
        file.write_text(content)
        with pytest.raises(CheckpointError, match="no checkpoint of a search, or damaged"):
            searched(dataset, one_thread, basis_size=8, checkpointing=saved_in(tmp_path, resume=True))
    assert SearchStore(tmp_path / "none").load_latest() is None


def test_evaluations_are_written_now_and_then(dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path) -> None:
    numbers: list[int] = []

    class Noted(SearchStore):
        def save(self, sequence_number: int, arrays: Any, metadata: Any) -> str:
            numbers.append(sequence_number)
            return super().save(sequence_number, arrays, metadata)

    for every_seconds in (0.0, 1e9):
        numbers.clear()
        checkpointing = Checkpointing(Noted(tmp_path / str(every_seconds)), every_seconds)
        searched(dataset, one_thread, basis_size=8, checkpointing=checkpointing)
        assert len(set(numbers)) == (numbers[-1] if every_seconds == 0.0 else 1)


def test_the_file_carries_the_record(dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path) -> None:
    found = searched(dataset, one_thread, basis_size=8)
    write_hyperparameters(tmp_path / "h.json", found)
    assert read_hyperparameters(tmp_path / "h.json") == found


def test_what_cannot_be_is_refused_before_anything_is_read(
    one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = arrays()
    dataset = memory_dataset(X, y)
    monkeypatch.setattr(search_module, "BoundObjective", None)
    with pytest.raises(InputError, match="a basis has 1 to 300 samples here; `basis_size` asks for 301"):
        searched(dataset, one_thread, basis_size=301)
    with pytest.raises(InputError, match="there is no hyperparameter 'length'"):
        searched(dataset, one_thread, basis_size=8, bounds={"length": (0.1, 1.0)})
    with pytest.raises(InputError, match="tolerance must be positive"):
        searched(dataset, one_thread, basis_size=8, tolerance=0.0)
    start = Hyperparameters(SquaredExponential((0.1, 0.2)), 0.1)
    with pytest.raises(InputError, match="another kernel than the one to tune"):
        searched(dataset, one_thread, basis_size=8, kernel="matern32", start=start)


def test_memory_is_planned() -> None:
    small, large = (plan_bound(10**5, 10, m, 1, LocalExecutor(2), 2**30) for m in (500, 1000))
    assert large.coordinator_bytes > small.coordinator_bytes
    with pytest.raises(MemoryBudgetError, match="1,000 basis samples is projected to need"):
        large.require(large.coordinator_bytes - 1)


@pytest.mark.long
def test_with_neighbours_few_basis_samples_find_what_the_likelihood_of_all_finds(
    one_thread: LocalExecutor, tmp_path: Path
) -> None:
    """Few basis samples for rough functions: the values are those of all samples' likelihood; the bound's are not."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (500, 1))
    kernel = SquaredExponential((20.0,))
    K = np.asarray(kernel(X, X)) + 0.01 * np.eye(500)
    y = np.linalg.cholesky(K) @ rng.standard_normal(500)
    dataset = memory_dataset(X, y / y.std())
    near, far = (searched(dataset, one_thread, objective=name, basis_size=5) for name in ("vif", "bound"))
    exact = tune(dataset.inputs(0, 500), dataset.all_targets(), subset=500)
    assert near.converged
    np.testing.assert_allclose(values(near)[[0, -1]], values(exact)[[0, -1]], rtol=0.05)
    assert values(far)[-1] > 5.0 * values(exact)[-1]
    # A search that goes on from what was evaluated takes the same steps.
    counts = []
    for resume in (False, True):
        there = saved_in(tmp_path, resume)
        assert plain(searched(dataset, one_thread, objective="vif", basis_size=5, checkpointing=there)) == plain(near)
        latest = saved_in(tmp_path, resume=True).latest()
        assert latest is not None
        counts.append(latest.sequence_number)
    assert counts[0] == counts[1]


@pytest.fixture
def rough_climbs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of halos of all evaluations from now on; searches of a few hundred samples climb with small ones first."""
    halos, own = list[int](), VifObjective.__call__

    def counted(self: VifObjective, *point: Any) -> BoundValue:
        halos.append(self._neighbours.halo)
        return own(self, *point)

    monkeypatch.setattr(VifObjective, "__call__", counted)
    monkeypatch.setattr(search_module, "ROUGH_FROM", N)
    monkeypatch.setattr(search_module, "ROUGH_NEIGHBOURS", Neighbours(8, 8))
    monkeypatch.setattr(search_module, "ROUGH_BASIS", 4)
    return halos


def test_a_climb_with_few_neighbours_spares_most_exact_evaluations(
    dataset: Dataset, one_thread: LocalExecutor, tmp_path: Path, rough_climbs: list[int]
) -> None:
    found = searched(dataset, one_thread, objective="vif", basis_size=8, checkpointing=saved_in(tmp_path))
    few, exact = rough_climbs.count(8), len(rough_climbs) - rough_climbs.count(8)
    assert [each["basis_size"] for each in found.sparse["rounds"][:2]] == [4, 8]
    assert 2 <= exact <= few / 2
    assert found.converged
    # An earlier run's outcomes are looked up, of both climbs.
    rough_climbs.clear()
    again = searched(dataset, one_thread, objective="vif", basis_size=8, checkpointing=saved_in(tmp_path, resume=True))
    assert plain(again) == plain(found)
    assert not rough_climbs
    # The exact search from the same start finds values that are hardly likelier, in nats a sample.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search_module, "ROUGH_FROM", N + 1)
        exactly = searched(dataset, one_thread, objective="vif", basis_size=8)
    assert set(rough_climbs) == {HALO}
    assert len(rough_climbs) > 2 * exact
    X, Y = dataset.inputs(0, N), dataset.all_targets()
    likelihoods = []
    for each in (found, exactly):
        Kbar = each.kernel(X, X) + each.noise_variance * np.eye(N)
        likelihoods.append(-0.5 * (np.sum(Y * np.linalg.solve(Kbar, Y)) + np.linalg.slogdet(Kbar)[1]))
    assert likelihoods[0] > likelihoods[1] - 1e-3 * N


@pytest.mark.parametrize("objective", ["bound", "vif"])
def test_a_search_ends_in_time_at_its_best_point(
    dataset: Dataset, one_thread: LocalExecutor, objective: Any, rough_climbs: list[int]
) -> None:
    found = searched(dataset, one_thread, objective=objective, basis_size=8, seconds=0.0)
    assert found.evaluations == 1
    assert not found.converged
    assert any("tuning stopped at 0 s, before" in message for message in found.warnings)
    assert set(rough_climbs) == ({8} if objective == "vif" else set())
    with pytest.raises(InputError, match="seconds must be at least 0; got -1"):
        searched(dataset, one_thread, objective=objective, basis_size=8, seconds=-1)


def test_nothing_free_takes_one_exact_evaluation(
    dataset: Dataset, one_thread: LocalExecutor, rough_climbs: list[int]
) -> None:
    searched(dataset, one_thread, objective="vif", basis_size=8, fixed={"*": 0.5})
    assert rough_climbs == [HALO]
