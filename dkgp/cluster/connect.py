"""Connects to a cluster, or starts one: by address, scheduler file, kind, or configuration.

Precedence: scheduler > scheduler file > kind > dask configuration (`scheduler-address`, `DASK_SCHEDULER_ADDRESS`) >
default. A cluster that is started here is always closed; one that ran already never is. Dask's performance report of a
run is one HTML page: which tasks ran where and when, transfers, and load of workers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkgp.cluster.cache import budget_here
from dkgp.cluster.client_executor import Announcer, LogAnnouncer, direct_results, executor_on, patience
from dkgp.cluster.configuration import set_config_file
from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor, QuickExecutor
from dkgp.cluster.options import KINDS, ClusterOptions, UnreachableSchedulerError
from dkgp.cluster.starters.security import plain_text_warning, secure_address, security_for_start, security_from
from dkgp.errors import ClusterError, DkgpError, InputError, UsageError
from dkgp.registry import LaterModule

if TYPE_CHECKING:
    from distributed import Client, Security

dask: Any = LaterModule("dask")


# Below this many samples a round is shorter than the scheduler's round trip.
SMALL_PROBLEM_SAMPLES = 20_000
# Up to so many samples a round may be shorter than the start of a thread.
QUICK_PROBLEM_SAMPLES = 1000
WORKERS_WAIT_SECONDS = 120.0
QUEUE_WAIT_SECONDS = 600.0
# Processes that are started here do not sample their own stacks, nor look at themselves 50 times a second: on the cores
# that they compute on, their clocks and monitors take 3 % of two.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
_POLL_SECONDS = (0.05, 1.0)
_NOTE_SECONDS = 5.0


@contextmanager
def open_executor(
    options: ClusterOptions,
    n_samples: int,
    announcer: Announcer | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Iterator[BlockExecutor]:
    """Connect to the cluster that the options name, or start one.

    Parameters
    ----------
    n_samples : int
        Size of the problem; decides whether "auto" needs Dask at all.
    announcer : Announcer, optional
        Told of workers that are waited for and of all that may need attention; such as a job's reporter.
    interrupted : callable, optional
        Asked by rounds that have no workers; when it returns true they end with `InterruptedRunError`.

    Yields
    ------
    BlockExecutor

    Raises
    ------
    UnreachableSchedulerError
        The scheduler did not answer in time.
    UsageError, InputError
        Settings or certificates that cannot be used.
    MissingExtraError
        The package that starts clusters of this kind is not installed.
    ClusterError
        It could not be started; it answered, but no worker came; or it runs other versions than this process.
    """
    with ExitStack() as stack:
        if options.config_file is not None:
            stack.enter_context(set_config_file(options.config_file))
        if options.performance_report is not None:
            require_place(options.performance_report)
        address = options.address()
        if options.resources and address is None:
            raise UsageError(
                "`resources` goes with a running scheduler, whose workers other work may use too; a cluster that is "
                "started here serves this run alone. Leave it out, or name the `scheduler`"
            )
        small = n_samples <= SMALL_PROBLEM_SAMPLES and options.performance_report is None
        if address is None and (KINDS.find(options.kind).start is None or (options.kind == "auto" and small)):
            threads = options.workers or options.threads_per_worker
            kind = QuickExecutor if n_samples <= QUICK_PROBLEM_SAMPLES else LocalExecutor
            executor: BlockExecutor = kind(threads, budget_here(options.cache_tiles))
        else:
            executor = _dask(options, address, stack, announcer or LogAnnouncer(), interrupted)
        stack.callback(executor.close)
        yield executor


def _dask(
    options: ClusterOptions,
    address: str | None,
    stack: ExitStack,
    announcer: Announcer,
    interrupted: Callable[[], bool] | None,
) -> BlockExecutor:
    from dkgp.cluster.executors.worker_setup import forget_orphans

    stack.enter_context(dask.config.set(patience(options)))
    if address is None:
        client = _started(options, security_for_start(options), stack)
    else:
        security = security_from(options)
        client = _connected(secure_address(address, security), options.connect_timeout_seconds, security, stack)
    kind = KINDS.find(options.kind)
    in_process = address is None and kind.in_process
    if not in_process and (plain := plain_text_warning(_address(client))):
        announcer.warn(plain)
    if address is not None:
        with suppress(Exception):  # some schedulers run no code of others; anything else that is wrong shows below
            client.sync(client._run_on_scheduler, forget_orphans, callback_timeout=options.connect_timeout_seconds)
    _wait_for_workers(client, options, address, announcer)
    stack.enter_context(direct_results(client, in_process))
    if options.performance_report is not None:
        stack.enter_context(performance_report(client, options.performance_report, announcer))
    owns_workers, tiles = address is None and kind.on_this_machine, None
    if owns_workers and not in_process:
        workers = max(_count_workers(client, options), options.most_workers)
        tiles = budget_here(options.cache_tiles, workers, options.worker_memory_bytes)
    return executor_on(
        client, options, announcer, in_process, owns_workers=owns_workers, tiles=tiles, interrupted=interrupted
    )


def _started(options: ClusterOptions, security: Security | None, stack: ExitStack) -> Client:
    from distributed import Client

    cluster = start_cluster(options, security, stack)
    seconds = options.connect_timeout_seconds
    try:
        client: Client = stack.enter_context(Client(cluster, timeout=seconds))
        return client
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"the {options.kind} cluster was started, but its scheduler did not answer within {seconds:.0f} s ({error})"
        ) from error


def start_cluster(options: ClusterOptions, security: Security | None, stack: ExitStack) -> Any:
    """Start the cluster that the options ask for, to be closed with the stack.

    `UsageError` for settings that the cluster's class does not take; `ClusterError` where it could not be started.
    """
    kind = KINDS.find(options.kind)
    if kind.start is None:
        raise UsageError(f"`cluster` {kind.name} starts no cluster")
    if not kind.in_process:
        _leave_folders_out(stack)
    if kind.queues and options.workers is None and options.adaptive is None:
        raise UsageError(f"`cluster` {kind.name} needs the number of workers: give `workers` N or `adaptive` MIN MAX")
    if kind.extra is not None:
        kind.extra.require(f"`cluster` {kind.name}")
    # First: defaults that come with an import while settings are held would go with these.
    import distributed  # noqa: F401

    from dkgp.cluster.elastic import RoundAdaptive

    if options.performance_report is None:
        stack.enter_context(dask.config.set(QUIET))
    try:
        cluster = kind.start(options, security, stack)
        if options.adaptive is not None:
            least, most = options.adaptive
            # Operators and gateways scale by rules of their own; they take no class.
            rule = {"Adaptive": RoundAdaptive, **kind.adaptive} if kind.adaptive else {}
            cluster.adapt(minimum=least, maximum=most, **rule)
        return cluster
    except DkgpError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        settings = f" (settings: {', '.join(sorted(options.settings))})" if options.settings else ""
        raise UsageError(
            f"`cluster` {kind.name} could not be started{settings}: {options.redacted(str(error))}"
        ) from error
    except Exception as error:  # each of these packages has errors of its own
        reason = " ".join(options.redacted(str(error)).split()).rstrip(".") or type(error).__name__
        raise ClusterError(f"the {kind.name} cluster could not be started: {reason}{kind.failure_hint}") from error


def _leave_folders_out(stack: ExitStack) -> None:
    """Keep processes that are started here from importing modules of the folder that they are started in.

    That may be a folder of data, with somebody else's `struct.py` in it. A folder that this process's own path names
    stays importable for its workers.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    if before is None:
        stack.callback(os.environ.pop, "PYTHONSAFEPATH", None)
    else:
        stack.callback(os.environ.__setitem__, "PYTHONSAFEPATH", before)


def _connected(address: str, seconds: float, security: Security | None, stack: ExitStack) -> Client:
    from distributed import Client

    try:
        _knock(address, seconds, security)
        client: Client = stack.enter_context(Client(address, timeout=seconds, set_as_default=False, security=security))
        return client
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        tls = (
            " It must have been started with certificates, and those of both sides must come from the same authority."
            if address.startswith("tls://")
            else " Where it was started with certificates, its address begins with tls:// and it needs `tls_ca`, "
            "`tls_cert` and `tls_key`."
        )
        raise UnreachableSchedulerError(
            f"no scheduler answered at {address} within {seconds:.0f} s ({error}). Check the address and that `dask "
            f"scheduler` runs there, or leave the option out to run on this machine.{tls}"
        ) from error


def _knock(address: str, timeout_seconds: float, security: Security | None) -> None:
    """Check that a scheduler answers: dask's client would wait for ever on a port that accepts and says nothing."""
    from distributed import Security
    from distributed.comm.core import connect

    async def shake_hands() -> None:
        arguments = (security or Security()).get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=timeout_seconds, **arguments), timeout_seconds)
        await comm.close()

    # In a thread of its own: this one may be running an event loop, as a notebook's does.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, shake_hands()).result()


def _wait_for_workers(client: Client, options: ClusterOptions, address: str | None, announcer: Announcer) -> None:
    """Wait for the workers that were asked for; when time is up go on with fewer, but not with none."""
    needed = options.workers or (options.adaptive or (1, 1))[0]
    queued = address is None and KINDS.find(options.kind).queues
    patience = options.worker_wait_seconds or (QUEUE_WAIT_SECONDS if queued else WORKERS_WAIT_SECONDS)
    started = time.monotonic()
    pause, most_pause = _POLL_SECONDS
    noted, noted_at = -1, started
    while True:
        count = _count_workers(client, options)
        now = time.monotonic()
        if count >= needed:
            if noted >= 0:
                announcer.note(f"{count} of {needed} workers are there after {now - started:.0f} s")
            return
        if now - started >= patience:
            break
        if count != noted and now - noted_at >= (_NOTE_SECONDS if noted >= 0 else 1.0):
            announcer.note(f"waiting for workers: {count} of {needed}, at most {patience - (now - started):.0f} s more")
            noted, noted_at = count, now
        time.sleep(min(pause, max(0.0, patience - (now - started))))
        pause = min(most_pause, 1.5 * pause)
    hint = _no_workers_hint(options, address)
    if count:
        announcer.warn(
            f"{count} of {needed} workers came within {patience:.0f} s; going on with these, and with others as they "
            f"come. For the missing ones {hint}"
        )
        return
    raise ClusterError(f"the scheduler at {_address(client)} has had no workers for {patience:.0f} s; {hint}")


def _address(client: Client) -> str:
    scheduler: Any = client.scheduler
    return str(scheduler.address)


def _count_workers(client: Client, options: ClusterOptions) -> int:
    from dkgp.cluster.executors.dask import threads_by_worker

    try:
        return len(threads_by_worker(client, options.resources))
    except (OSError, TimeoutError, AttributeError) as error:
        raise ClusterError(f"the scheduler stopped answering while workers were waited for: {error}") from error


def _no_workers_hint(options: ClusterOptions, address: str | None) -> str:
    if options.resources:
        words = " ".join(f"{name}={amount:g}" for name, amount in options.resources.items())
        return f'start some with `dask worker ADDRESS --resources "{words}"`: workers without these get no tasks'
    if address is not None:
        return "start some with `dask worker ADDRESS`, or read the logs of the workers that should be connected"
    return KINDS.find(options.kind).no_workers


REPORT_SECONDS = 60.0


@contextmanager
def performance_report(client: Client, path: str, announcer: Announcer) -> Iterator[None]:
    """Record the cluster's work while the context is open, and write the page at its end, after failures too.

    `UsageError` if the scheduler lacks bokeh. A cluster that is lost at the end takes its records along, and the
    announcer is warned.
    """
    scheduler: Any = client.scheduler
    if not client.run_on_scheduler(_has_bokeh()):
        raise UsageError(
            "`performance_report` needs bokeh in the scheduler's environment, which draws the page: pip install "
            "'dkgp[dashboard]'"
        )
    began = time.time()
    client.get_task_stream(start=0, stop=0)  # the scheduler records tasks from the first call on
    count = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.monitor.count)
    try:
        yield
    finally:
        try:
            # Dask's own context manager writes in place, and shows the lines that called it.
            page = client.sync(
                scheduler.performance_report,
                start=began,
                last_count=count,
                code="",
                mode=None,
                callback_timeout=REPORT_SECONDS,
            )
            temporary = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
            temporary.write_text(page, encoding="utf-8")
            os.replace(temporary, path)
            announcer.note(f"performance report: {path}")
        except Exception as error:  # the run's own result or error counts more
            announcer.warn(f"the performance report '{path}' could not be written: {error}")


def require_place(path: str) -> None:
    """Refuse, before any cluster is started, a report that could not be written; `InputError`."""
    folder = Path(path).absolute().parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"`performance_report`: '{path}' cannot be written; expected a file in a folder that exists and can be "
            "written to"
        )


def _has_bokeh() -> Any:
    def has_bokeh() -> bool:
        from importlib.util import find_spec

        return find_spec("bokeh") is not None

    return has_bokeh
