"""Workers that die, join and vanish, coordinators that are killed and interrupted: the same bits, or a clear end."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import pytest

from dkgp.cluster import BlockExecutor, ClusterOptions, LocalExecutor, open_executor, worker_cache
from dkgp.cluster.executors.base import RoundTasks
from dkgp.cluster.executors.sums import PendingTotal
from dkgp.data import CheckpointStore
from dkgp.errors import ClusterError, ExitCode
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.certificate import certify
from dkgp.models.sparse.model import METHODS, Basis, fit_sparse
from dkgp.models.sparse.near import fit_near
from dkgp.models.sparse.vif import Neighbours, VifObjective
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers import Checkpointing, Progress
from dkgp.solvers.basis_risk.minimise import BasisDescent
from dkgp.solvers.basis_risk.problem import BasisRisk
from dkgp.solvers.greedy_basis import GreedySettings, choose_greedily
from dkgp.solvers.losses import LogisticLoss
from dkgp.solvers.risk import Risk
from tests.engine.helpers import (
    Bits,
    ManualCluster,
    Problem,
    TrainCommand,
    bits,
    client_of,
    kill_one,
    opened,
    with_a_worker_killed,
    worker_pids,
)

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]

StartProcess = Callable[..., subprocess.Popen[str]]


@pytest.mark.parametrize(("name", "count"), [("kblock", 8), ("kpass", 1)])
def test_a_worker_killed_in_mid_round(problem: Problem, reference: Bits, name: str, count: int) -> None:
    trained = with_a_worker_killed(name, count, problem.train)
    assert bits(trained) == reference


def test_results_that_went_down_with_their_worker_are_computed_again_soon() -> None:
    """The scheduler would try for a minute and a half to fetch them from it."""
    with opened("processes", 2) as executor:
        client = client_of(executor)
        for _ in range(3):  # the scheduler does not always run into it
            client.wait_for_workers(2, timeout=240)
            pids = worker_pids(client)
            pending = executor.submit("sorted", sorted, (), [[3, 2], [5, 4], [7, 6], [9, 8]])
            while not pending.done():
                time.sleep(0.001)
            os.kill(pids[0], signal.SIGKILL)
            started = time.monotonic()
            assert pending.result() == [2, 3, 4, 5, 6, 7, 8, 9]
            assert time.monotonic() - started < 60.0


@pytest.mark.slow
def test_workers_killed_again_and_again(problem: Problem, reference: Bits) -> None:
    """Also after a round is computed and before it is fetched: the results go down with the worker."""
    with opened("processes", 2) as executor:
        client = client_of(executor)

        def kill_now_and_then(progress: Progress) -> None:
            if progress.iteration in (10, 30, 45):
                client.wait_for_workers(2, timeout=240)
                kill_one(client)

        assert bits(problem.train(executor, callback=kill_now_and_then)) == reference


def cache_misses() -> int:
    return worker_cache().misses


def test_a_worker_that_joins_in_mid_solve_gets_work(
    problem: Problem, reference: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.cluster.executors.dask.PARALLELISM_REFRESH_SECONDS", 0.1)
    with opened("processes", 1) as executor:
        client = client_of(executor)
        first = set(worker_pids(client))
        parallelism = []

        def grow(progress: Progress) -> None:
            if progress.iteration == 10:
                client.cluster.scale(2)
                client.wait_for_workers(2, timeout=240)
                time.sleep(0.2)
            parallelism.append(executor.parallelism)

        assert bits(problem.train(executor, callback=grow)) == reference
        assert (parallelism[0], parallelism[-1]) == (1, 2)
        # It has built features of its own, so tasks of this solve have run on it.
        misses = client.run(cache_misses)
        pids = client.run(os.getpid)
        late = [address for address, pid in pids.items() if pid not in first]
        assert len(late) == 1
        assert misses[late[0]] > 0


def test_all_workers_gone_is_an_error_in_time_and_can_be_resumed(
    problem: Problem, reference: Bits, tmp_path: Path
) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    with opened("processes", 1, round_deadline_seconds=3.0) as executor:
        client = client_of(executor)

        def abandon(progress: Progress) -> None:
            if progress.iteration == 20:
                client.cluster.scale(0)

        with pytest.raises(ClusterError, match="resumed") as caught:
            problem.train(executor, callback=abandon, checkpointing=Checkpointing(store, every_seconds=0.0))
        assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    found = store.load_latest()
    assert found is not None
    assert 18 <= found.sequence_number <= 20
    with opened("none", 2) as executor:
        resumed = problem.train(executor, checkpointing=Checkpointing(store, 1000.0, resume=True))
    assert bits(resumed) == reference


def test_a_lost_scheduler_is_an_error_in_time_and_can_be_resumed(
    problem: Problem, reference: Bits, manual_cluster: Callable[..., ManualCluster], tmp_path: Path
) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    cluster = manual_cluster(1)
    options = ClusterOptions(
        scheduler_file=cluster.scheduler_file, connect_timeout_seconds=3.0, round_deadline_seconds=20.0
    )
    with open_executor(options, 1) as executor:

        def lose(progress: Progress) -> None:
            if progress.iteration == 20:
                cluster.scheduler.kill()

        with pytest.raises(ClusterError):
            problem.train(executor, callback=lose, checkpointing=Checkpointing(store, every_seconds=0.0))
    with opened("none", 2) as executor:
        resumed = problem.train(executor, checkpointing=Checkpointing(store, 1000.0, resume=True))
    assert bits(resumed) == reference


# ------------------------------------------------------------------------------------------------ the command in whole


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_ctrl_c_with_worker_processes_saves_and_resumes(command: TrainCommand) -> None:
    """A terminal's Ctrl-C goes to every process of the foreground group, the workers and their nannies included."""
    process = command.start("--cluster", "processes", "--workers", 2, rounds=15, start_new_session=True)
    helpers = descendants(process.pid)
    assert len(helpers) >= 2
    os.killpg(process.pid, signal.SIGINT)
    assert command.require_error(process, ExitCode.INTERRUPTED)["type"] == "InterruptedRunError"
    assert not psutil.wait_procs(helpers, timeout=240)[1]
    command.require_resumed()


@pytest.mark.slow
def test_kill_9_of_the_coordinator_leaves_no_orphans_and_resumes(command: TrainCommand) -> None:
    process = command.start("--cluster", "processes", "--workers", 1, "--checkpoint-every", 0.05, rounds=25)
    helpers = descendants(process.pid)
    process.kill()
    assert process.wait(timeout=240) == -signal.SIGKILL
    assert not psutil.wait_procs(helpers, timeout=240)[1]
    command.require_resumed("--cluster", "local")


# Sparse models under faults: a worker killed in mid-tree of each kind of sum, a choice killed at random moments.


def fitted(operator: BlockedKernelOperator, y: np.ndarray, method: str) -> list[np.ndarray]:
    chosen = np.arange(0, operator.n, 50)
    fit = fit_sparse(operator, y, Basis(operator.inputs(chosen), chosen), METHODS[method])
    said = json.dumps(certify(operator, fit, y, subset=chosen).to_json(), sort_keys=True)
    return [fit.model.weights, fit.model.lower, np.frombuffer(said.encode(), dtype=np.uint8)]


def near(operator: BlockedKernelOperator, y: np.ndarray) -> list[np.ndarray]:
    fitted = fit_near(operator, y, some(operator), Neighbours(8, 24, searched=400))
    assert 0.0 < fitted.unproven < 1.0
    return [fitted.near.whitened, fitted.near.normal, np.array([fitted.log_likelihood, fitted.unproven])]


def sloped(operator: BlockedKernelOperator, y: np.ndarray) -> list[np.ndarray]:
    evidence = VifObjective(operator.context.source, y, operator.executor, Neighbours(8, 24))
    found = evidence(operator.kernel, operator.noise_variance, some(operator))
    evidence.close()
    return [np.append(found.gradient, found.value)]


def chosen_greedily(operator: BlockedKernelOperator, y: np.ndarray) -> list[np.ndarray]:
    found = choose_greedily(operator, y, GreedySettings(12, per_round=3, screen=2, score_rows=900, dual=True))
    return [found.indices, found.weights, found.dual]


def classified(operator: BlockedKernelOperator, y: np.ndarray) -> list[np.ndarray]:
    signs = np.where(y > np.median(y), 1.0, -1.0)
    cross = CrossKernel(operator, some(operator))
    found = BasisDescent(BasisRisk(cross, signs, Risk(LogisticLoss(), 0.1)), hessian=True).run()
    assert found.hessian is not None
    return [found.weights, found.values, found.hessian.lowers[0]]


Work: TypeAlias = Callable[[BlockedKernelOperator, np.ndarray], list[np.ndarray]]

# Names of sums, and work that comes to them.
SUMS: dict[str, tuple[str, Work]] = {
    "vfe": ("crossgram", lambda operator, y: fitted(operator, y, "vfe")),
    "fitc": ("crossgram", lambda operator, y: fitted(operator, y, "fitc")),
    "residual": ("residual", lambda operator, y: fitted(operator, y, "sr")),
    "candidates": ("candidates", chosen_greedily),
    "centres": ("lloyd", lambda operator, y: [blind_basis(operator, "k-means", 20).inputs]),
    "projection": ("crossproject", lambda operator, y: [CrossKernel(operator, some(operator)).project(y)]),
    "loss": ("basisrisk", classified),
    "neighbours": ("vifsums", near),
    "slopes of neighbours": ("vifslopes", sloped),
    "gram": ("crossgram", lambda operator, y: [CrossKernel(operator, some(operator)).gram(y).matrix]),
}


def some(operator: BlockedKernelOperator) -> np.ndarray:
    return operator.inputs(np.arange(20))


class UnderSum:
    """An executor that does something once, as soon as a certain sum has gone out to the workers."""

    def __init__(self, executor: BlockExecutor, name: str, deed: Callable[[], None]) -> None:
        self._executor, self._name, self._deed, self.done = executor, name, deed, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        pending = self._executor.start_total(tasks)
        if tasks.name == self._name and not self.done:
            self._deed()
            self.done = True
        return pending


@pytest.mark.parametrize(("name", "work"), SUMS.values(), ids=SUMS)
def test_a_worker_killed_in_mid_tree_of_any_sum(problem: Problem, name: str, work: Work) -> None:
    y = problem.dataset.all_targets()
    executor = LocalExecutor(1)
    with BlockedKernelOperator(problem.kernel, 0.05, problem.dataset, executor) as operator:
        expected = work(operator, y)
    executor.close()
    with opened("processes", 2) as executor:
        client = client_of(executor)
        faulty = UnderSum(executor, f"k{name}", lambda: kill_one(client))
        with BlockedKernelOperator(problem.kernel, 0.05, problem.dataset, faulty) as operator:  # type: ignore[arg-type]
            found = work(operator, y)
    assert faulty.done
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


SCRIPT = """
import hashlib, sys
import numpy as np
from dkgp.cluster import LocalExecutor
from dkgp.data import CheckpointStore, open_dataset
from dkgp.kernels import SquaredExponential
from dkgp.models import RunContext
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.solvers import Checkpointing

def main(url, folder, log, how):
    more = {"rows": {"score_rows": 900, "per_round": 2}, "gap": {"gap": 1e-6, "per_round": 1}}[how]
    def note(progress):
        with open(log, "a") as out:
            print(progress.size, file=out)
    kept = Checkpointing(CheckpointStore(folder), every_seconds=0.0, identity={"of": url}, resume=True)
    context = RunContext(LocalExecutor(2), callback=note, checkpointing=kept)
    trained = train_sparse(
        open_dataset(url), SquaredExponential((0.2, 0.2, 0.15, 0.05, 0.05, 0.01)), 0.05, context,
        SparseSettings("sggp", 40, candidates=20, **more),
    )
    model, said = trained.model, repr(trained.certificate.to_json())
    arrays = [model.weights, model.lower, trained.greedy.indices, trained.greedy.dual]
    print(hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays) + said.encode()).hexdigest())

main(*sys.argv[1:])
"""


@pytest.mark.parametrize("how", ["rows", "gap"])
def test_a_choice_killed_at_random_moments_ends_in_the_same_bits(problem: Problem, tmp_path: Path, how: str) -> None:
    def start(folder: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            SCRIPT,
            problem.dataset.url,
            str(tmp_path / folder),
            str(tmp_path / "log"),
            how,
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))

    whole = start("whole").communicate(timeout=300)[0].strip()
    rounds = (tmp_path / "log").read_text().split()
    assert len(whole) == len(hashlib.sha256().hexdigest())
    log, moments, kills = tmp_path / "log", random.Random(how), 0
    while True:
        log.unlink(missing_ok=True)
        process = start("killed")
        # Moments are counted in rounds, and a little beyond: seconds would mean another one on each machine.
        until = moments.randint(1, max(1, len(rounds) // 5))
        while process.poll() is None and (not log.exists() or len(log.read_text().split()) < until):
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.005))
        if kills < 3 and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
            process.wait()
            continue
        assert process.communicate(timeout=300)[0].strip() == whole
        break
    assert kills >= 2
    # Nothing that was saved was chosen again: the last run began beyond the first round.
    again = log.read_text().split() if log.exists() else []
    assert len(again) < len(rounds)
    print(f"\n{how}: killed {kills} times, {len(rounds)} rounds; the same bits")
