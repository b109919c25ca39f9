"""Variances on threads, workers and processes: the same bits for the same plan, through a lost worker too."""

from __future__ import annotations

import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import available_cores, process_threads
from dkgp.data import Dataset, ModelRecord
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.iterative import BatchLayout, IterativeRun
from dkgp.models.variance.settings import VarianceSettings
from tests.engine.helpers import AfterSubmit, content, opened

# Three batches, the last of them short, that take several passes each, and a plan that depends on no executor.
PLANS = {
    "conjugate": VarianceSettings(gap=1e-3, rank=150, halo=0, batch_size=30),
    "searched": VarianceSettings(gap=1e-3, rank=150, halo=90, batch_size=30),
    "smooth": VarianceSettings(gap=0.9, rank=700, batch_size=30),
    "whole": VarianceSettings(gap=1e-3, way="cholesky", batch_size=30),
}
TESTS = 80

Content = dict[str, bytes]
Expected = Callable[[str], Content]


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X, _ = friedman1(TESTS, n_features=6, seed=8, test=True)
    return dataset_from_arrays(str(tmp_path_factory.mktemp("tests") / "test.zarr"), X, None)


def threads_of(group: list[int]) -> list[int]:
    return [process_threads() for _ in group]


@pytest.fixture(scope="module")
def expected(model: ModelRecord, tests: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The bits of one thread without Dask: by conjugate gradients with either factor, by it alone, by the whole one."""
    folder = tmp_path_factory.mktemp("expected")

    @cache
    def of_plan(name: str) -> Content:
        with closing(LocalExecutor(1)) as executor:
            summary = predict(model, tests, str(folder / name), executor, variance=PLANS[name]).variance
        assert summary is not None
        assert summary["unmet"] == 0
        assert summary["smooth"] is (name == "smooth")
        assert (summary["column_passes"] > 2.0) is (name not in ("smooth", "whole"))
        assert (summary["products_float32"] > 1.0) is (name == "searched")
        return content(folder / name)

    return of_plan


@pytest.fixture(scope="module")
def processes() -> Iterator[BlockExecutor]:
    """Two worker processes of one thread each."""
    with opened("processes", 2) as executor:
        yield executor


@pytest.mark.long
@pytest.mark.parametrize(("kind", "workers"), [pytest.param("none", 3, marks=pytest.mark.portable), ("local", 2)])
def test_the_same_bits_on_any_threads(
    model: ModelRecord, tests: Dataset, expected: Expected, tmp_path: Path, kind: str, workers: int
) -> None:
    with opened(kind, workers) as executor:
        assert executor.parallelism == executor.threads_per_process == workers
        for name, settings in PLANS.items():
            predict(model, tests, str(tmp_path / name), executor, variance=settings)
            assert content(tmp_path / name) == expected(name)


@pytest.mark.portable
def test_the_same_bits_in_other_processes(
    model: ModelRecord, tests: Dataset, expected: Expected, tmp_path: Path, processes: BlockExecutor
) -> None:
    assert (processes.parallelism, processes.threads_per_process) == (2, 1)
    for name, settings in PLANS.items():
        predict(model, tests, str(tmp_path / name), processes, variance=settings)
        assert content(tmp_path / name) == expected(name)
    # A worker keeps its own threads busy, and no more.
    assert processes.submit("threads", threads_of, (), [[0], [1], [2], [3]]).result() == [1, 1, 1, 1]
    assert process_threads() == available_cores()


@pytest.mark.long
def test_processes_that_share_each_batch_give_the_same_bits(
    model: ModelRecord,
    tests: Dataset,
    expected: Expected,
    tmp_path: Path,
    processes: BlockExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: True))
    for name in ("conjugate", "searched"):
        summary = predict(model, tests, str(tmp_path / name), processes, variance=PLANS[name]).variance
        assert summary is not None
        assert summary["shared"] is True
        assert content(tmp_path / name) == expected(name)


@pytest.mark.portable
def test_a_trial_takes_its_samples_along_to_other_processes(
    model: ModelRecord, tests: Dataset, tmp_path: Path, processes: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[np.ndarray] = []
    prepare = IterativeRun.prepare

    def trying(self: IterativeRun) -> str:
        gaps.append(self.tried(tests.inputs(10, 40))[0])
        return prepare(self)

    monkeypatch.setattr(IterativeRun, "prepare", trying)
    with opened("none", 1) as executor:
        predict(model, tests, str(tmp_path / "here"), executor, variance=PLANS["conjugate"])
    predict(model, tests, str(tmp_path / "there"), processes, variance=PLANS["conjugate"])
    assert gaps[0].shape == (30,)
    np.testing.assert_array_equal(gaps[0], gaps[1])


@pytest.mark.portable
def test_no_tiles_are_put_where_workers_do_not_see_them(
    model: ModelRecord, tests: Dataset, tmp_path: Path, processes: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each is a container, with a folder of temporary files of its own."""
    assert processes.sees_folder(str(tmp_path))
    assert not list(tmp_path.iterdir())

    def asked(client: Client, question: Any, what: str) -> dict[str, bool]:
        return {"here": True, "there": False}

    monkeypatch.setattr("dkgp.cluster.executors.dask.ask_workers", asked)
    with pytest.raises(InputError, match="workers see no folder of this process's for the tiles"):
        predict(model, tests, str(tmp_path / "p"), processes, variance=PLANS["whole"])
    predict(model, tests, str(tmp_path / "p"), processes, variance=VarianceSettings(gap=1e-3, batch_size=30))


@pytest.mark.portable
def test_the_plan_decides_and_not_the_bits_alone(
    model: ModelRecord, tests: Dataset, expected: Expected, tmp_path: Path
) -> None:
    """Other batches are other bits, otherwise equal ones would say little; and still the means are the same."""
    with opened("none", 2) as executor:
        other = VarianceSettings(gap=1e-3, rank=150, halo=0, batch_size=47)
        predict(model, tests, str(tmp_path / "p"), executor, variance=other)
    found = content(tmp_path / "p")
    assert found["variance"] != expected("conjugate")["variance"]
    assert found["mean"] == expected("conjugate")["mean"]
    interval = {name: np.frombuffer(found[name]) for name in ("variance_lower", "variance_upper")}
    before = {name: np.frombuffer(expected("conjugate")[name]) for name in interval}
    assert (interval["variance_lower"] <= before["variance_upper"]).all()
    assert (before["variance_lower"] <= interval["variance_upper"]).all()


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
@pytest.mark.parametrize(
    ("name", "count", "shared"),
    [("kfactor", 1, False), ("kvariance", 2, False), ("kgram", 1, True), ("kpass", 3, True), ("kvsweep", 2, True)],
)
def test_a_worker_killed_in_mid_batch(
    model: ModelRecord,
    tests: Dataset,
    expected: Expected,
    tmp_path: Path,
    processes: BlockExecutor,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    count: int,
    shared: bool,
) -> None:
    """A batch on a worker, and one that all workers share."""
    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: shared))
    client: Client = processes._client  # type: ignore[attr-defined]
    client.wait_for_workers(2, timeout=240)
    before = set(client.run(os.getpid).values())
    faulty = AfterSubmit(processes, name, count - 1, lambda: os.kill(min(before), signal.SIGKILL))
    predict(model, tests, str(tmp_path / "p"), faulty, variance=PLANS["searched"])
    assert faulty.done
    assert not psutil.pid_exists(min(before))
    assert content(tmp_path / "p") == expected("searched")


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.portable
def test_memory_does_not_grow_with_the_number_of_tests(
    model: ModelRecord, one_thread: BlockExecutor, tmp_path: Path
) -> None:
    """NumPy reports its arrays to tracemalloc."""
    peaks: dict[int, list[int]] = {}
    # The first fills caches and imports. What happens to be written at the same moment comes on top: the least counts.
    for rows in (40, 40, 160, 480, 160, 480, 40, 160, 480):
        X, _ = friedman1(rows, n_features=6, seed=9, test=True)
        number = sum(map(len, peaks.values()))
        dataset = dataset_from_arrays(str(tmp_path / f"{number}.zarr"), X, None, chunk_rows=40)
        tracemalloc.start()
        settings = VarianceSettings(gap=0.5, max_passes=0, rank=20, batch_size=40)
        predict(model, dataset, str(tmp_path / f"p{number}"), one_thread, variance=settings)
        peaks.setdefault(rows, []).append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks[160]) < 1.5 * min(peaks[40])
    # Less than 1.4 kilobytes for each sample more; a row of cross-covariances has 16.
    assert min(peaks[480]) < 1.2 * min(peaks[160])
