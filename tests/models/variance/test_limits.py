"""What variances refuse, within which memory they plan, and the factor that is kept with a model for the next time."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dkgp.cluster import BlockExecutor, PendingRound
from dkgp.data import ModelRecord, open_dataset, open_factor, open_model, open_prediction
from dkgp.errors import ExitCode, InputError, InterruptedRunError, MemoryBudgetError, StoreError
from dkgp.kernels import SquaredExponential
from dkgp.models.context import RunContext
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance import iterative
from dkgp.models.variance.iterative import building_bytes
from dkgp.models.variance.nystrom import NystromFactor, landmark_jitter
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import MaxIterations
from tests.covering import few
from tests.models.variance.variance_world import KERNEL, NOISE, QUICK, Counting, N, World, content, gaps

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")


@pytest.fixture
def model(world: World, tmp_path: Path) -> ModelRecord:
    """A copy of the model, to be changed."""
    shutil.copytree(world.folder / "model", tmp_path / "model")
    return open_model(str(tmp_path / "model"))


# ------------------------------------------------------------------------------------------------------------- settings

WRONG: list[dict[str, Any]] = [
    *({"gap": gap} for gap in (0.0, -0.01, float("nan"), float("inf"))),
    *({"max_passes": passes} for passes in (-1, -1e-9, float("nan"))),
    *({"rank": rank} for rank in (0, -5)),
    *({"batch_size": size} for size in (0, -1)),
    *({"memory_bytes": size} for size in (0, -1)),
    {"halo": -1},
    {"seed": -1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: "{}={}".format(*next(iter(wrong.items()))))
def test_settings_that_make_no_sense_are_bad_input(wrong: dict[str, Any]) -> None:
    value = str(next(iter(wrong.values())))
    with pytest.raises(InputError, match=f"got {re.escape(value)}") as caught:
        VarianceSettings(**wrong)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_settings_at_the_edge_are_fine(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    settings = VarianceSettings(gap=5.0, max_passes=0.0, rank=1, batch_size=1000)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings)
    assert summary.variance is not None
    assert (summary.variance["unmet"], summary.variance["rank"]) == (0, 1)


def test_without_a_limit_on_passes(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    settings = VarianceSettings(gap=1e-3, max_passes=1e9, rank=20)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings).variance
    assert summary is not None
    assert summary["unmet"] == 0


# --------------------------------------------------------------------------------------------------------------- memory


def test_a_rank_beyond_memory_is_refused_in_numbers(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    asked = VarianceSettings(rank=300, memory_bytes=400_000)
    with pytest.raises(MemoryBudgetError) as caught:
        predict(world.model, world.test, str(tmp_path / "p"), executor, variance=asked)
    message = str(caught.value)
    assert "rank 300" in message
    assert f"{building_bytes(N, 300) / 1e6:,.3g} MB" in message
    assert not (tmp_path / "p").exists()
    # The rank that it says would fit does.
    fits = int(re.findall(r"`rank` to ([\d,]+)", message)[0])
    assert 10 < fits < 300
    settings = VarianceSettings(rank=fits, memory_bytes=400_000, gap=0.5)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings).variance
    assert summary is not None
    assert summary["rank"] == fits


def test_vectors_beyond_memory_are_refused_in_numbers(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    asked = VarianceSettings(rank=1, memory_bytes=10_000, gap=1e-4)
    with pytest.raises(MemoryBudgetError, match=r"[\d.]+ MB") as caught:
        predict(world.model, world.test, str(tmp_path / "p"), executor, variance=asked)
    assert "`memory_bytes`" in str(caught.value)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("memory_bytes", [300_000, 1_000_000, 10**9])
def test_what_is_chosen_fits(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    """The factor that is built, and the vectors of the samples solved together."""
    held: list[int] = []
    build = NystromFactor.of

    def measured(source: Any, executor: Any) -> NystromFactor:
        factor = build(source, executor)
        columns = np.zeros(0) if factor.columns is None else factor.columns
        held.append(sum(a.nbytes for a in (columns, factor.lower, factor.gram_lower, factor.residual_diagonal)))
        return factor

    monkeypatch.setattr(NystromFactor, "of", staticmethod(measured))
    settings = VarianceSettings(gap=0.01, memory_bytes=memory_bytes, way="iterative")
    predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings)
    plan = open_prediction(str(tmp_path / "p")).attributes["variance"]
    together = 8 * N * 4 * min(plan["together"], plan["batch_size"])  # residuals, solutions, directions and images
    assert len(held) == 1
    assert held[0] + together <= memory_bytes
    assert gaps(open_prediction(str(tmp_path / "p"))).max() <= 0.01


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_test_store_with_a_nan_is_refused(
    world: World, executor: BlockExecutor, tmp_path: Path, value: float
) -> None:
    """Ingest lets none through; whoever writes Zarr by hand may, and once a store is open nobody looks at its sizes."""
    shutil.copytree(world.folder / "test", tmp_path / "test")
    test = open_dataset(str(tmp_path / "test"))
    inputs = zarr.open_array(str(tmp_path / "test" / "X"), mode="r+")
    inputs[57, 1] = value
    with pytest.raises(InputError, match="row 57|rows 40 to 79") as caught:
        predict(world.model, test, str(tmp_path / "p"), executor, variance=QUICK)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert not (tmp_path / "p").exists()


def by_reference(world: World, executor: BlockExecutor, folder: Path) -> tuple[Path, Path]:
    shutil.copytree(world.folder / "train", folder / "train")
    dataset = open_dataset(str(folder / "train"))
    trained = train(dataset, KERNEL, NOISE, executor, stopping=MaxIterations(1))
    save(trained, str(folder / "model"), dataset, by_reference=True)
    return folder / "model", folder / "train"


class Unused(Counting):
    """No task is to be started: on a cluster it would be tried again and again."""

    def submit(self, name: str, *rest: Any) -> PendingRound:
        raise AssertionError(f"{name} was started")


def test_a_model_by_reference_predicts_the_same(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    model, _ = by_reference(world, executor, tmp_path)
    for name, url in (("a", model), ("b", world.folder / "model")):
        predict(open_model(str(url)), world.test, str(tmp_path / name), executor, variance=QUICK)
    here, there = content(tmp_path / "a"), content(tmp_path / "b")
    assert here["variance_lower"] == there["variance_lower"]
    assert here["variance_upper"] == there["variance_upper"]


@pytest.mark.parametrize("settings", [None, QUICK], ids=["means", "variances"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_model_by_reference_without_its_training_set(
    world: World, executor: BlockExecutor, tmp_path: Path, when: str, settings: VarianceSettings | None
) -> None:
    """Gone before the model is opened, or between that and the prediction."""
    model, training = by_reference(world, executor, tmp_path)
    opened = open_model(str(model))
    shutil.rmtree(training)
    with pytest.raises(StoreError) as caught:
        predict(
            open_model(str(model)) if when == "before" else opened,
            world.test, str(tmp_path / "p"), Unused(executor), variance=settings,
        )  # fmt: skip
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert str(training) in str(caught.value)
    assert not (tmp_path / "p").exists()


def test_a_support_chunk_lost_since_the_model_was_opened(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    """Not the first one, which is looked at beforehand."""
    (tmp_path / "model" / "inputs" / "c" / "2" / "0").unlink()
    with pytest.raises(StoreError):
        predict(model, world.test, str(tmp_path / "p"), executor, variance=QUICK)
    assert not (tmp_path / "p").exists()


# ------------------------------------------------------------------------------------------------------ the kept factor

KEPT = VarianceSettings(gap=0.01, rank=40, halo=50, batch_size=30, keep_factor=True)
KEPT_SMOOTH = VarianceSettings(gap=0.5, batch_size=30, keep_factor=True)


def run(
    model: ModelRecord, world: World, executor: BlockExecutor, url: Path, settings: VarianceSettings
) -> tuple[dict[str, bytes], str]:
    """What the store holds, and what was said about the factor."""
    notes: list[str] = []
    predict(model, world.test, str(url), executor, variance=settings, note=notes.append)
    return content(url), notes[0]


@pytest.mark.parametrize("settings", [KEPT, KEPT_SMOOTH], ids=["single", "double"])
def test_a_kept_factor_is_loaded_and_gives_the_same(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, settings: VarianceSettings
) -> None:
    first, built = run(model, world, executor, tmp_path / "a", settings)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    assert kept.metadata["precision"] == ("single" if settings is KEPT else "double")
    second, loaded = run(open_model(model.url), world, executor, tmp_path / "b", settings)
    assert first == second
    assert "built" in built
    assert "loaded" in loaded


def test_a_factor_is_kept_only_when_asked(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    run(model, world, executor, tmp_path / "p", QUICK)
    assert open_factor(model.url, fingerprint=model.fingerprint) is None


def test_a_kept_factor_that_was_raised_by_less_than_its_rank_takes_is_not_used(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of older versions, which did not say by how much."""
    run(model, world, executor, tmp_path / "a", KEPT)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    assert kept.metadata["jitter"] == landmark_jitter(KERNEL, model.input_rows(np.asarray(kept.indices))) == 1e-9
    monkeypatch.setattr(iterative, "landmark_jitter", lambda kernel, inputs: 1.1e-9)
    _, note = run(model, world, executor, tmp_path / "b", VarianceSettings(gap=0.01, rank=40, batch_size=30))
    assert "built" in note
    assert "an older version's, which does not count every rounding" in note


def test_a_kept_factor_that_does_not_say_what_it_leaves_is_not_used(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a float32 one of an older version, whose triangle may tell F where it is held alone."""
    expected, _ = run(model, world, executor, tmp_path / "a", KEPT)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    told = {name: value for name, value in kept.metadata.items() if name != "kernel_trace"}
    assert len(told) < len(kept.metadata)
    monkeypatch.setattr(iterative, "open_factor", lambda url, fingerprint: replace(kept, metadata=told))
    found, note = run(model, world, executor, tmp_path / "b", QUICK)
    assert "built" in note
    assert "an older version's" in note
    assert found == expected


def test_another_rank_is_another_factor(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    run(model, world, executor, tmp_path / "a", KEPT)
    other = VarianceSettings(gap=0.01, rank=25, batch_size=30)
    found, note = run(model, world, executor, tmp_path / "b", other)
    assert "rank 25" in note
    assert "built" in note
    fresh, _ = run(world.model, world, executor, tmp_path / "c", other)
    assert found["variance"] == fresh["variance"]


def test_a_single_precision_factor_is_not_left_to_prove_by_itself(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    run(model, world, executor, tmp_path / "a", KEPT)
    alone = VarianceSettings(gap=0.01, rank=40, batch_size=30, max_passes=0)
    found, _ = run(model, world, executor, tmp_path / "b", alone)
    fresh, _ = run(world.model, world, executor, tmp_path / "c", alone)
    assert found["variance_upper"] == fresh["variance_upper"]
    exact = world.latent + world.noise
    assert (np.frombuffer(found["variance_upper"]).reshape(exact.shape) >= exact * (1 - 1e-9)).all()


@pytest.mark.parametrize("change", few(("kernel", "noise"), "noise"))
def test_an_overwritten_models_factor_is_not_used(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, change: str
) -> None:
    run(model, world, executor, tmp_path / "a", KEPT)
    kernel = SquaredExponential((0.2, 0.4, 0.2), 1.0) if change == "kernel" else KERNEL
    noise = 0.1 if change == "noise" else NOISE
    trained = train(world.train, kernel, noise, executor, stopping=MaxIterations(1))
    save(trained, model.url, world.train, overwrite=True)
    found, note = run(open_model(model.url), world, executor, tmp_path / "b", QUICK)
    assert "built" in note
    save(trained, str(tmp_path / "fresh"), world.train)
    fresh, _ = run(open_model(str(tmp_path / "fresh")), world, executor, tmp_path / "c", QUICK)
    assert found == fresh


def test_resuming_with_a_factor_kept_meanwhile(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    """It is the one that the run began with, so the bytes are those of a run that was not interrupted."""
    expected, _ = run(world.model, world, executor, tmp_path / "a", QUICK)
    asked = iter([False, True])
    with pytest.raises(InterruptedRunError):
        predict(
            model, world.test, str(tmp_path / "p"), RunContext(executor, interrupted=lambda: next(asked)), variance=KEPT
        )
    assert open_factor(model.url, fingerprint=model.fingerprint) is not None
    counting = Counting(executor)
    predict(model, world.test, Destination(str(tmp_path / "p"), resume=True), counting, variance=QUICK)
    assert counting.batches == [(30, 60), (60, 90)]
    assert content(tmp_path / "p") == expected


def test_a_damaged_factor_is_built_again(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    expected, _ = run(model, world, executor, tmp_path / "a", KEPT)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    Path(kept.url, "columns", "c", "0", "0").unlink()
    found, note = run(model, world, executor, tmp_path / "b", QUICK)
    assert found == expected
    assert "built" in note
    assert "of no use" in note
