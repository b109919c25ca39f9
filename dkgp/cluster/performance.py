"""Dask's performance report of a run: which tasks ran where and when, transfers, load of workers, as one HTML page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkgp.errors import InputError, UsageError

if TYPE_CHECKING:
    from distributed import Client

    from dkgp.cluster.client_executor import Announcer

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
