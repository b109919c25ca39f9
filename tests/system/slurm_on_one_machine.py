"""A SLURM site on one machine: controller, two node daemons and munge, from a distribution's packages, in one folder.

    with slurm_site(folder) as site:
        subprocess.run(["srun", "-N2", "hostname"], env=site.environment)

Nothing of the machine's own SLURM, if it has one, is read or written; the daemons end when the block does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SlurmSite", "missing", "slurm_site"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
NODES = ("dkgp1", "dkgp2")
UP_SECONDS = 60.0
STOP_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


def missing() -> str | None:
    """Return the reason why a site cannot be started here, or None."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"needs SLURM and munge (Debian: slurmctld slurmd slurm-client munge); missing: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "needs root: slurmd starts jobs under their users' accounts"
    return None


@dataclass(frozen=True)
class SlurmSite:
    """A running site.

    Attributes
    ----------
    folder
        Configuration, state and the daemons' logs.
    environment
        With it, SLURM's commands speak to this site.
    """

    folder: Path
    environment: dict[str, str]

    def run(self, *command: object, timeout: float = 60.0) -> str:
        """Run one of SLURM's commands; its standard output."""
        answer = subprocess.run(
            [str(part) for part in command], env=self.environment, capture_output=True, text=True, timeout=timeout
        )
        assert answer.returncode == 0, f"{command}: {answer.stderr}{self.logs()}"
        return answer.stdout

    def state(self, job: str) -> str:
        """The job's state, such as PENDING, RUNNING, COMPLETED."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """One field of `scontrol show job`."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        fields = dict(part.split("=", 1) for part in shown.split() if "=" in part)
        return fields[name]

    def jobs(self, name: str) -> list[str]:
        """Ids of the running jobs of a name."""
        return self.run("squeue", "--noheader", "--states=RUNNING", f"--name={name}", "--format=%A").split()

    def wait(self, job: str, states: tuple[str, ...], seconds: float = 120.0) -> str:
        """Wait until the job is in one of the states; that state."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            ended = state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
            assert not ended, f"job {job} is {state}, not {states}{self.logs()}"
            assert time.monotonic() < until, f"job {job} is still {state}, not {states}{self.logs()}"
            time.sleep(0.1)
        return state

    def logs(self) -> str:
        """The ends of the daemons' logs, for the message of a failed assertion."""
        tails = [f"\n--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log"))]
        return "".join(tails)


def _configuration(folder: Path, ports: list[int], memory_megabytes: int) -> str:
    host = socket.gethostname().split(".")[0]
    return f"""
ClusterName=dkgp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
# A requeued job waits until the credentials of its last run have expired, by default for two minutes.
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
# As in containers: no control groups needed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=15
# The default lets a job run up to a minute over its time; the tests' jobs have their warning long before.
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
# Nodes are declared with more cores than the machine has, so that several jobs run at once on a small one.
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=4 RealMemory={memory_megabytes}
NodeName=dkgp[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}]
# Jobs of `urgent` take the nodes from jobs of `main`, which get a minute's notice and go back into the queue.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


def _free_ports() -> list[int]:
    """One port, and two in a row: SLURM takes a range for its nodes."""
    for first in range(29_000 + os.getpid() % 1000, 32_000, 3):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 3):
                    stack.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", port))
            except OSError:
                continue
            return [first, first + 1, first + 2]
    raise AssertionError("no three free ports in a row below 32000")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def daemon(folder: Path, name: str, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def slurm_site(folder: Path) -> Iterator[SlurmSite]:
    """Start a site of two nodes in a folder, and stop it at the end, its jobs cancelled."""
    folder = folder.resolve()
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    configuration = folder / "slurm.conf"
    configuration.write_text(_configuration(folder, _free_ports(), page * pages // 1024**2 // 2))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    site = SlurmSite(folder, {**inherited, "SLURM_CONF": str(configuration)})
    munge = folder / "munge"
    with contextlib.ExitStack() as stack:
        daemons = [
            stack.enter_context(
                daemon(
                    folder, "munged", "munged", "--foreground", "--force", f"--key-file={key}",
                    f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
                    f"--seed-file={munge}/seed",
                )
            )
        ]  # fmt: skip
        _until(lambda: (munge / "socket").exists(), daemons, site)
        daemons.append(stack.enter_context(daemon(folder, "slurmctld", "slurmctld", "-D", "-c", "-f", configuration)))
        for node in NODES:
            daemons.append(stack.enter_context(daemon(folder, node, "slurmd", "-D", "-N", node, "-f", configuration)))
        _until(lambda: _idle_nodes(site) == len(NODES), daemons, site)
        try:
            yield site
        finally:
            _cancel_all(site)


def _idle_nodes(site: SlurmSite) -> int:
    answer = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--partition=main", "--states=idle", "--format=%N"],
        env=site.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return len(answer.stdout.split()) if answer.returncode == 0 else 0


def _cancel_all(site: SlurmSite) -> None:
    """Cancel what still runs and see it gone: slurmd leaves the jobs' processes behind when it ends."""
    subprocess.run(["scancel", "--me"], env=site.environment, capture_output=True, timeout=60)
    until = time.monotonic() + STOP_SECONDS * 2
    while time.monotonic() < until:
        queue = subprocess.run(["squeue", "-h"], env=site.environment, capture_output=True, text=True, timeout=60)
        if not queue.stdout.strip():
            return
        time.sleep(0.2)


def _until(ready: Callable[[], bool], daemons: list[subprocess.Popen[bytes]], site: SlurmSite) -> None:
    until = time.monotonic() + UP_SECONDS
    while not ready():
        ended = [daemon.args for daemon in daemons if daemon.poll() is not None]
        assert not ended, f"ended at once: {json.dumps(ended, default=str)}{site.logs()}"
        assert time.monotonic() < until, f"SLURM did not come up within {UP_SECONDS:.0f} s{site.logs()}"
        time.sleep(0.1)
