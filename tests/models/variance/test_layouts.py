"""A batch on one worker, or on all: the same bits, and a forecast that says which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance import iterative
from dkgp.models.variance.iterative import BatchLayout, IterativeRun
from dkgp.models.variance.settings import VarianceSettings
from dkgp.plan.foreseen import PlannedWorkers
from dkgp.solvers.conjugate.preconditioner import Batches
from dkgp.solvers.prices import Sizes
from tests.models.variance.variance_world import TESTS, World, content

# Nothing names a batch size: it is the run's own.
SETTINGS = {
    "by the factor": VarianceSettings(gap=0.3, rank=300),
    "products in float64": VarianceSettings(gap=1e-3, rank=40, halo=0),
    "a held factor": VarianceSettings(gap=1e-3, rank=40, halo=0, memory_bytes=2**28),
    "a search in float32": VarianceSettings(gap=1e-3, rank=40, halo=50),
    "several batches": VarianceSettings(gap=0.01, rank=30, halo=50),
}


def workers(processes: int, threads: int) -> BlockExecutor:
    """Threads of this process that pass for so many workers; none: a run without any."""
    return PlannedWorkers(processes, threads) if processes else LocalExecutor(threads)


def predicted(
    world: World, out: Path | Destination, executor: BlockExecutor, settings: VarianceSettings
) -> tuple[dict[str, bytes], dict]:
    place = out if isinstance(out, Destination) else Destination(str(out))
    said: list[str] = []
    try:
        summary = predict(world.model, world.test, place, executor, variance=settings, note=said.append).variance
    finally:
        executor.close()
    assert summary is not None
    return content(Path(place.url)), {**summary, "said": " ".join(said)}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_bit_depends_on_workers_threads_or_layout(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "several batches":
        monkeypatch.setattr(iterative, "LARGEST_JOINT_BATCH", 40)
    found = []
    for shared, processes, threads in (
        (False, 0, 1), (False, 0, 3), (False, 1, 2), (False, 2, 1), (False, 3, 2), (True, 2, 1), (True, 3, 2),
    ):  # fmt: skip
        monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self, shared=shared: shared))
        bits, summary = predicted(world, tmp_path / str(len(found)), workers(processes, threads), SETTINGS[name])
        found.append((bits, summary["batch_size"]))
        assert summary["shared"] is (shared and name != "by the factor")
        assert summary["unmet"] == 0
    batches = -(-TESTS // found[0][1])
    assert (batches > 1) is (name in ("several batches", "by the factor"))
    for other in found[1:]:
        assert other == found[0]


def test_a_run_that_goes_on_may_be_laid_out_anew(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are the plan's, and the layout is no part of it."""
    settings = VarianceSettings(gap=0.01, rank=30, halo=50, batch_size=30)
    whole, _ = predicted(world, tmp_path / "whole", workers(0, 1), settings)
    solved, collect = [], IterativeRun.collect

    def stops(self: IterativeRun, results: list) -> object:
        solved.append(self.is_shared)
        if len(solved) == 2:
            raise KeyboardInterrupt
        return collect(self, results)

    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: True))
    with monkeypatch.context() as patched:
        patched.setattr(IterativeRun, "collect", stops)
        with pytest.raises(KeyboardInterrupt):
            predicted(world, Destination(str(tmp_path / "p")), workers(2, 1), settings)
    assert solved == [True, True]
    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: False))
    bits, summary = predicted(world, Destination(str(tmp_path / "p"), resume=True), workers(3, 2), settings)
    assert summary["shared"] is False
    assert bits == whole


def layout(n: int, tests: int, batches: int, workers: int, *, halo: int = 1000) -> BatchLayout:
    counts = Batches(tests, batches, -(-tests // batches), 2000, halo, 1000, False, 4.0 if halo else 0.0, 1.0)
    return BatchLayout.of(Sizes(n, 8, blocks=-(-n // 8192)), counts, workers, 1)


def test_one_large_batch_is_shared_and_many_are_not() -> None:
    assert layout(10**6, 200, 1, 64).is_shared
    assert not layout(10**6, 200, 1, 1).is_shared
    assert not layout(10**5, 64_000, 640, 16).is_shared
    assert not layout(2_000, 90, 1, 2).is_shared  # messages take longer than products
    # A batch on all workers scales with them; one on each does not.
    few, many = layout(10**6, 200, 1, 16), layout(10**6, 200, 1, 64)
    assert many.alone == pytest.approx(few.alone)
    assert many.together < 0.4 * few.together


def test_the_layout_is_said_in_one_line(world: World, tmp_path: Path) -> None:
    settings = VarianceSettings(gap=0.01, rank=30, halo=50)
    _, summary = predicted(world, tmp_path / "p", workers(2, 1), settings)
    assert "1 batch on 2 workers: a batch a worker, about" in summary["said"]
    assert summary["layout"]["shared"] is False
    assert 0.0 < summary["layout"]["alone_seconds"] < summary["layout"]["shared_seconds"]
    _, alone = predicted(world, tmp_path / "q", workers(0, 2), settings)
    assert "batch" not in alone["said"]
    assert np.isfinite(alone["layout"]["alone_seconds"])
