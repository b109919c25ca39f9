"""The thread budget: BLAS down to one thread while a solve runs, and pieces of work shared between threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from dkgp.cluster.threads import (
    available_cores,
    in_parallel,
    limit_blas_threads,
    require_single_threaded_blas,
    single_threaded_blas,
)
from dkgp.errors import ClusterError, ExitCode

TWO_CORES = pytest.mark.skipif(available_cores() < 2, reason="BLAS runs one thread anyway")


def blas_threads() -> set[int]:
    """Threads of every BLAS in this process, by another controller than the one under test."""
    libraries = ThreadpoolController().lib_controllers
    return {library.num_threads for library in libraries if library.user_api == "blas"}


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    before = blas_threads()
    limit_blas_threads(2)
    yield
    limit_blas_threads(max(before))


@TWO_CORES
@pytest.mark.usefixtures("two_blas_threads")
def test_blas_gets_one_thread_and_its_own_back() -> None:
    assert blas_threads() == {2}
    with single_threaded_blas():
        assert blas_threads() == {1}
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}


@TWO_CORES
@pytest.mark.usefixtures("two_blas_threads")
def test_blas_is_restored_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), single_threaded_blas():
        raise RuntimeError("on purpose")
    assert blas_threads() == {2}


@TWO_CORES
@pytest.mark.usefixtures("two_blas_threads")
def test_contexts_that_overlap_across_threads_restore_with_the_last() -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with single_threaded_blas():
            inside.set()
            leave.wait()

    other = threading.Thread(target=hold)
    with single_threaded_blas():
        other.start()
        assert inside.wait(240.0)
    assert blas_threads() == {1}
    leave.set()
    other.join()
    assert blas_threads() == {2}


@TWO_CORES
@pytest.mark.usefixtures("two_blas_threads")
def test_too_many_blas_threads_are_refused_with_the_remedy() -> None:
    with pytest.raises(ClusterError, match="worker 7: BLAS runs 2 threads") as caught:
        require_single_threaded_blas("worker 7")
    assert "OPENBLAS_NUM_THREADS=1" in str(caught.value)
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    with single_threaded_blas():
        require_single_threaded_blas("worker 7")


@pytest.mark.parametrize("threads", [1, 2, 3, 8, None])
def test_every_piece_is_done_once_whatever_the_threads(threads: int | None) -> None:
    done = np.zeros(57, dtype=int)

    def work(index: int) -> None:
        done[index] += index + 1

    in_parallel(work, 57, threads)
    np.testing.assert_array_equal(done, np.arange(1, 58))


def test_no_pieces_is_no_work() -> None:
    in_parallel(lambda index: pytest.fail("there is no piece"), 0, 4)


@TWO_CORES
def test_pieces_run_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=240)
    in_parallel(lambda index: meeting.wait() and None, 2, 2)


@pytest.mark.parametrize("bad", [0, 5, 30])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_exception_comes_out_and_the_helpers_stay_usable(bad: int, threads: int) -> None:
    def work(index: int) -> None:
        time.sleep(0.001)
        if index == bad:
            raise ArithmeticError(f"piece {index}")

    with pytest.raises(ArithmeticError, match=f"piece {bad}"):
        in_parallel(work, 31, threads)
    test_every_piece_is_done_once_whatever_the_threads(threads)


@TWO_CORES
def test_nothing_is_still_at_work_once_an_exception_is_out() -> None:
    """A caller that has unwound frees or reuses the arrays that the pieces wrote to."""
    meeting, ended, begun = threading.Barrier(2, timeout=240), [], []

    def work(index: int) -> None:
        begun.append(index)
        if index < 2:
            meeting.wait()
        if index == 0:
            raise ArithmeticError("at once")
        time.sleep(0.2)
        ended.append(index)

    with pytest.raises(ArithmeticError):
        in_parallel(work, 1000, 2)
    assert sorted(ended) == sorted(set(begun) - {0})
    assert len(begun) < 500
    count = len(begun)
    time.sleep(0.3)
    assert len(begun) == count


def test_nested_calls_do_not_wait_for_themselves() -> None:
    """In a process of its own: where this fails, it hangs."""
    code = """
import threading
from dkgp.cluster.threads import in_parallel
count, lock = [0], threading.Lock()
def leaf(index):
    with lock:
        count[0] += 1
def branch(index):
    in_parallel(leaf, 5, 4)
for _ in range(20):
    in_parallel(lambda index: in_parallel(branch, 4, 4), 4, 4)
print(count[0])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert result.stdout.strip() == str(20 * 4 * 4 * 5)


def test_callers_in_several_threads_share_the_helpers() -> None:
    results = [np.zeros(40, dtype=int) for _ in range(6)]

    def call(result: np.ndarray) -> None:
        def work(index: int) -> None:
            result[index] += 1

        for _ in range(20):
            in_parallel(work, 40, 3)

    callers = [threading.Thread(target=call, args=(result,)) for result in results]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((result == 20).all() for result in results)
