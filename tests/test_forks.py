"""Locks, pools and folders of a process in its forked children: scripts, so that none of pytest's threads is there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# `in_child` runs a function in a forked child and returns its result; a child that does not end within 20 s is killed.
SCRIPT = """
import multiprocessing, os, threading, time
def in_child(function):
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(function()))
    child.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(20.0) else "hangs"
    except EOFError:
        return "fails"
    finally:
        child.kill()
        child.join()
"""

CASES = {
    "pool of an executor": """
        from dkgp.cluster.executors.base import LocalExecutor
        executor = LocalExecutor(2)
        def work(group): return [item * item for item in group]
        def call(): return executor.submit("squares", work, (), [[1, 2], [3], [4], [5, 6]]).result()
        expected = [1, 4, 9, 16, 25, 36]
        assert call() == expected
        assert in_child(call) == expected, in_child(call)
        assert call() == expected
    """,
    "closed pool stays closed": """
        from dkgp.cluster.executors.base import LocalExecutor
        executor = LocalExecutor(2)
        executor.close()
        def call():
            try:
                executor.submit("none", print, (), [[1]])
            except RuntimeError:
                return "refused"
        assert in_child(call) == "refused"
    """,
    "helper threads": """
        from dkgp.cluster import threads
        threads.available_cores = lambda: 3
        def call():
            done = []
            threads.in_parallel(lambda index: (time.sleep(0.01), done.append(index)), 9)
            return sorted(done)
        assert call() == list(range(9))
        assert in_child(call) == list(range(9))
    """,
    "value that another thread builds": """
        from dkgp.cluster.cache import FeatureCache
        import numpy as np
        cache, begun, end = FeatureCache(), threading.Event(), threading.Event()
        def slow():
            begun.set()
            end.wait()
            return np.ones(1)
        thread = threading.Thread(target=cache.get, args=("key", slow))
        thread.start()
        begun.wait()
        assert in_child(lambda: float(cache.get("key", lambda: np.zeros(1))[0])) == 0.0
        end.set()
        thread.join()
        assert float(cache.get("key", lambda: np.zeros(1))[0]) == 1.0
    """,
    "locks that another thread holds": """
        from dkgp.cluster import cache, threads
        from dkgp.kernels.tiles import code_cache, user_functions
        from dkgp.operators.keeping import worker_tiles
        locks = [threads._lock, cache.worker_cache()._lock, cache.worker_cache()._values.lock, user_functions._LOCK]
        locks += [code_cache._Places._lock, worker_tiles()._lock]
        thread = threading.Thread(target=lambda: [lock.acquire() for lock in locks])
        thread.start()
        thread.join()
        assert in_child(lambda: [lock.acquire(timeout=0.1) for lock in locks]) == [True] * len(locks)
    """,
    "code that another thread compiles": """
        import dkgp.forks
        from numba.core.compiler_lock import global_compiler_lock as compiler
        done, begun = [], threading.Event()
        def compile_code():
            with compiler:
                begun.set()
                time.sleep(0.3)
                done.append(1)
        thread = threading.Thread(target=compile_code)
        thread.start()
        begun.wait()
        def call():
            with compiler:
                return done  # nothing is half compiled in the child
        assert in_child(call) == [1]
        thread.join()
        thread = threading.Thread(target=compile_code)  # open to other threads in the parent
        thread.start()
        thread.join(240.0)
        assert not thread.is_alive()
    """,
    "BLAS threads": """
        from dkgp.cluster.threads import _set_blas_threads, blas_libraries, single_threaded_blas
        for library in blas_libraries():
            _set_blas_threads(library, 2)
        def counts(): return {library.num_threads for library in blas_libraries()}
        def within():
            with single_threaded_blas():
                return counts()
        assert counts() == {2}
        begun, end = threading.Event(), threading.Event()
        def other():
            with single_threaded_blas():
                begun.set()
                end.wait()
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        assert in_child(lambda: (counts(), within(), counts())) == ({2}, {1}, {2})
        end.set()
        thread.join()
        assert counts() == {2}
        # A context of the thread that forks goes on in the child, and ends there.
        context = single_threaded_blas()
        context.__enter__()
        def leave():
            before = counts()
            context.__exit__(None, None, None)
            return before, counts()
        assert in_child(leave) == ({1}, {2})
        assert counts() == {1}
        context.__exit__(None, None, None)
        assert counts() == {2}
    """,
    "temporary folder": """
        import sys
        from dkgp.forks import remove_with
        import tempfile
        class Owner: pass
        owner, folder = Owner(), tempfile.mkdtemp()
        remove_with(owner, folder)
        child = os.fork()
        if not child:
            owner = None
            sys.exit(0)  # runs finalizers, as os._exit does not
        os.waitpid(child, 0)
        assert os.path.isdir(folder)
        owner = None
        assert not os.path.exists(folder)
    """,
    "client": """
        import dask
        from distributed import Client, LocalCluster
        from dkgp.cluster.client_executor import client_around, open_client_executor
        from dkgp.errors import UsageError
        cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
        with cluster, Client(cluster) as client:
            def call():
                try:
                    with open_client_executor(client) as executor:
                        return "used", client_around() is client
                except UsageError as error:
                    return str(error), client_around()
            assert call() == ("used", True)
            message, around = in_child(call)
            assert message.startswith("client= was connected before this process was forked") and around is None
            assert call() == ("used", True)
    """,
    "dask's threads": """
        import dask, dask.array
        from dkgp.cluster import LocalExecutor
        x = dask.array.ones((8, 8), chunks=2)
        def call(): return float(x.sum().compute(scheduler="threads"))
        assert call() == 64.0
        assert in_child(call) == 64.0
    """,
}


# Each case is a process or two; the others are long.
QUICK = ("pool of an executor", "value that another thread builds")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_a_forked_child_waits_for_none_of_its_parents_threads(case: str) -> None:
    script = SCRIPT + textwrap.dedent(CASES[case])
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
