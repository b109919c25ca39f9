"""Arithmetic of the workers: compared where bits depend on it, at the start and for workers that join later."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from threadpoolctl import threadpool_info

import dkgp
from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor
from dkgp.cluster.arithmetic import (
    Arithmetic,
    fetch_arithmetic,
    is_marked,
    needs_one_arithmetic,
    process_arithmetic,
    require_fused_workers,
    require_one_arithmetic,
    unfit,
)
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.errors import ClusterError, ExitCode
from tests.cluster.helpers import StartProcess, start_scheduler

HERE = Arithmetic("a", "znver3", True, ("openblas 0.3.30 Zen", "openblas 0.3.31 Zen"), ("X86_V3",), "glibc 2.36")
OTHER = replace(HERE, host="b", blas=("openblas 0.3.30 SkylakeX", "openblas 0.3.31 SkylakeX"))

# Tasks whose bits are those of dkgp's own loops, or of no arithmetic at all. A new one goes here, or is marked.
PORTABLE = {
    "unit_sums_task",
    "apply_columns_task", "diagonal_task", "forget_task", "matmat_task", "reason_task", "row_errors_task", "rows_task",
    "mean_task", "means_task", "sparse_mean_task", "linear_task", "decision_task",
    "digest_task", "verify_task", "step_rows_task", "rebuild_rows_task",
    "echo_task", "resident_task", "sleeping_task",
    "fold_columns_task", "fold_errors_task",
    "farthest_task", "lloyd_task", "row_moments_task",
    "up_task", "finish_task", "cell_task", "plan_task",
    "box_task", "codes_task", "moments_task", "polynomials_task", "nearest_task",
    "counted_task",  # runs another one, whose mark counts
    "counted_totals_task",
    "sums_task",
}  # fmt: skip
MARKED = {
    "gram_task", "project_task", "expand_task", "candidates_task", "residual_task",
    "order_task", "halo_task", "build_task", "sweep_task", "forward_task", "backward_task",
    "panel_task", "product_task", "probe_task",
    "factor_task", "variance_task", "variances_task", "sparse_variance_task",
    "contract_task", "bounded_mean_task", "library_decision_task", "slopes_task",
    "vif_sums_task", "vif_slopes_task", "vif_noise_slopes_task", "vif_weights_task",
    "fold_gram_task", "triangle_task",
    "basis_risk_task", "basis_task", "row_sums_task",
    "row_project_task", "row_columns_task", "row_candidates_task",
    "summary_task", "evaluate_task", "fold_task", "holdout_task",
    "neighbour_task", "local_task", "misfit_task",
    "bounded_sums_task",
}  # fmt: skip


def named(*held: Arithmetic) -> dict[str, Arithmetic]:
    return {f"tcp://10.0.0.{number}:1": arithmetic for number, arithmetic in enumerate(held, 1)}


def test_what_this_process_computes_with() -> None:
    own = process_arithmetic()
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    assert len(own.blas) == len(libraries) > 0
    for library in libraries:
        assert any(library["version"] in name and library["architecture"] in name for name in own.blas)
    assert own.fused
    assert own.vectors == tuple(np.show_config(mode="dicts")["SIMD Extensions"]["found"])
    assert unfit(None) is None
    assert unfit(own) is None


def test_every_task_is_either_portable_or_marked() -> None:
    found = {}
    for module in pkgutil.walk_packages(dkgp.__path__, "dkgp."):
        if not module.name.endswith("__main__"):
            members = vars(importlib.import_module(module.name))
            found |= {name: task for name, task in members.items() if name.endswith("_task") and callable(task)}
    assert {name for name, task in found.items() if is_marked(task)} == MARKED
    assert {name for name, task in found.items() if not is_marked(task)} == PORTABLE


def test_equal_workers_are_one_arithmetic_whatever_their_names() -> None:
    assert require_one_arithmetic({}) is None
    # The processor's name alone may change nothing: a worker compiled for an older one is as good.
    found = require_one_arithmetic(named(HERE, replace(HERE, host="b", processor="x86-64-v3")))
    assert found == HERE


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (OTHER, "BLAS openblas 0.3.30 SkylakeX and openblas 0.3.31 SkylakeX"),
        (replace(HERE, host="b", vectors=()), "NumPy's vector code none"),
        (replace(HERE, host="b", library="glibc 2.41"), "C library glibc 2.41"),
    ],
    ids=["blas", "vectors", "library"],
)
def test_workers_that_differ_are_refused_with_their_hosts(other: Arithmetic, told: str) -> None:
    with pytest.raises(ClusterError) as caught:
        require_one_arithmetic(named(HERE, other, HERE))
    _, most, odd, advice = str(caught.value).splitlines()
    assert most.startswith("  tcp://10.0.0.1:1 (host a), tcp://10.0.0.3:1 (host a): ")
    assert odd == f"  tcp://10.0.0.2:1 (host b): {told}"
    assert "OPENBLAS_CORETYPE" in advice
    assert "gbcd" in advice
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST


def test_many_workers_are_counted_rather_than_named() -> None:
    with pytest.raises(ClusterError, match=r"10\.0\.0\.7:1 \(host a\) and 2 more: "):
        require_one_arithmetic(named(OTHER, *[HERE] * 10))


def test_workers_without_fused_multiply_adds_are_refused_with_their_hosts() -> None:
    require_fused_workers(named(HERE, OTHER))
    with pytest.raises(ClusterError, match=r"workers tcp://10\.0\.0\.2:1 \(host b\): the processor, nehalem to"):
        require_fused_workers(named(HERE, replace(OTHER, fused=False, processor="nehalem")))


def test_who_joins_late_must_be_like_the_others() -> None:
    message = unfit(OTHER)
    assert message is not None
    assert "computes with something else than the run's other workers (BLAS: " in message
    assert f"{OTHER.parts['blas']} there" in message


def test_differences_from_what_a_checkpoint_recorded() -> None:
    recorded = HERE.to_json()
    assert HERE.differences(recorded) is None
    assert HERE.differences({**recorded, "host": "elsewhere"}) is None
    assert HERE.differences(None) is None
    assert HERE.differences({}) is None
    assert HERE.differences({**recorded, "processor": "haswell"}) == "processor haswell, here znver3"
    assert HERE.differences(OTHER.to_json()) == (
        "BLAS openblas 0.3.30 SkylakeX and openblas 0.3.31 SkylakeX, here openblas 0.3.30 Zen and openblas 0.3.31 Zen"
    )


@needs_one_arithmetic
def marked(group: list[int]) -> list[int]:
    return group


def plain(group: list[int]) -> list[int]:
    return group


def running(task: Callable[[list[int]], list[int]], group: list[int]) -> list[int]:
    return task(group)


def test_a_marked_task_is_not_begun_on_unlike_workers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    held = named(HERE, OTHER)
    monkeypatch.setattr("dkgp.cluster.executors.dask.fetch_arithmetic", lambda client: held)
    executor = DaskExecutor(client)
    try:
        assert executor.submit("t", plain, (), [[1], [2]]).result() == [1, 2]
        for _ in range(2):  # it is asked each time: the odd one may have left
            with pytest.raises(ClusterError, match=r"10\.0\.0\.2:1 \(host b\): BLAS"):
                executor.submit("t", marked, (), [[1], [2]])
        with pytest.raises(ClusterError, match=r"10\.0\.0\.2:1 \(host b\): BLAS"):
            executor.submit("t", running, (marked,), [[1], [2]])
        assert executor.submit("t", running, (plain,), [[1], [2]]).result() == [1, 2]
        monkeypatch.setattr("dkgp.cluster.executors.dask.fetch_arithmetic", fetch_arithmetic)
        assert executor.submit("t", marked, (), [[1], [2]]).result() == [1, 2]
    finally:
        executor.close()


def test_threads_of_one_process_compute_alike(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(client: Client) -> dict[str, Arithmetic]:
        raise AssertionError("asked")

    monkeypatch.setattr("dkgp.cluster.executors.dask.fetch_arithmetic", never)
    local = LocalExecutor(1)
    assert local.submit("t", marked, (), [[1]]).result() == [1]
    local.close()
    executor = DaskExecutor(client, in_process=True)
    assert executor.submit("t", marked, (), [[1]]).result() == [1]
    executor.close()


@pytest.mark.faults
def test_an_unlike_worker_that_joins_late_leaves_before_it_has_taken_a_task(
    start_process: StartProcess, tmp_path: Path
) -> None:
    """It leaves if the run needs one arithmetic. Otherwise it leaves only if it lacks fused multiply-adds."""
    address = start_scheduler(start_process, tmp_path)
    worker = ("dask", "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    worker += ("--local-directory", str(tmp_path))
    odd = {"OPENBLAS_CORETYPE": "Sandybridge"}
    if "Sandybridge" in process_arithmetic().blas[0]:
        pytest.skip("this processor's own BLAS is the odd one's")
    start_process(*worker)
    with open_executor(ClusterOptions(scheduler=address, round_deadline_seconds=60.0), 1) as executor:
        client: Client = executor._client  # type: ignore[attr-defined]
        stays = start_process(*worker, environment=odd)
        client.wait_for_workers(2, timeout=240)
        assert executor.submit("t", plain, (), [[1], [2]]).result() == [1, 2]
        with pytest.raises(ClusterError, match="Sandybridge"):
            executor.submit("t", marked, (), [[1], [2]])
        stays.terminate()
        stays.wait(timeout=240)
        assert executor.submit("t", marked, (), [[1], [2]]).result() == [1, 2]

        late = {
            "Sandybridge here": start_process(*worker, log=tmp_path / "odd.log", environment=odd),
            "nehalem to the compiler, has no fused multiply-add": start_process(
                *worker,
                log=tmp_path / "old.log",
                environment={"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""},
            ),
        }
        until = time.monotonic() + 120.0
        while any(process.poll() is None for process in late.values()):
            assert time.monotonic() < until, "an unfit worker stayed"
            assert executor.submit("t", marked, (), [[1], [2], [3]]).result() == [1, 2, 3]
            time.sleep(0.1)
        for said, log in zip(late, ("odd.log", "old.log"), strict=True):
            assert said in (tmp_path / log).read_text()
        assert len(client.nthreads()) == 1
