"""The client that is around: a program's own `distributed.Client()`, which estimators use where they are given none."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Any

from dkgp.cluster.client_executor import client_around, compare_versions, fetch_versions, is_in_process
from dkgp.cluster.connect import SMALL_PROBLEM_SAMPLES
from dkgp.data import Dataset
from dkgp.data.remote.addresses import is_local
from dkgp.errors import ClusterError

logger = logging.getLogger("dkgp.estimators")

# Clients that were spoken of, by what was said.
_TOLD: dict[str, weakref.WeakSet[Any]] = {}
_KEEP = "Give `client=` to decide, or set dask's `scheduler` configuration, as in dask.config.set(scheduler='threads')"


def ambient_client(n_samples: int) -> Any:
    """Return the default client, where it is of use for so many samples; None otherwise.

    It is none for problems so small that a round is shorter than the scheduler's round trip; within a task, which would
    wait for the workers that it holds; where dask's `scheduler` configuration names another scheduler; and where
    workers lack dkgp, or have another version, which is said once, as a warning in the log. That it is used is said
    once, too.
    """
    if n_samples <= SMALL_PROBLEM_SAMPLES:
        return None
    client: Any = client_around()
    if client is None or not (is_in_process(client) or _is_fit(client)):
        return None
    address: str = client.scheduler.address
    _tell(client, "used", logging.INFO, f"using the dask client that is around, of the scheduler at {address}. {_KEEP}")
    return client


def ambient_client_for(dataset: Any) -> Any:
    """The same for a training set, which workers have to be able to read; a `Dataset` or what holds one."""
    client = ambient_client(dataset.n_samples)
    if client is None or is_in_process(client):
        return client
    stored = getattr(dataset, "dataset", dataset)
    if not (isinstance(stored, Dataset) and stored.is_stored):
        return None
    url = stored.url
    if not is_local(url):
        return client
    seen = client.run(os.path.exists, url, on_error="ignore")
    if seen and all(seen.values()):
        return client
    blind = ", ".join(sorted(worker for worker, sees in seen.items() if not sees)[:3]) or "no worker answered"
    _tell(
        client,
        "blind",
        logging.WARNING,
        f"the dask client that is around is not used: its workers ({blind}) cannot read the training set at '{url}'. "
        "Give `store=`, a folder or URL that all of them can read",
    )
    return None


def _is_fit(client: Any) -> bool:
    """Return True if all workers have this process's dkgp, as of now: workers come and go."""
    try:
        software = fetch_versions(client)
        if not software.workers:
            raise ClusterError("it has no workers at the moment")
        compare_versions(software)
    except ClusterError as error:
        _tell(
            client,
            "unfit",
            logging.WARNING,
            f"the dask client that is around is not used, and the work done in this process: {error}. {_KEEP}",
        )
        return False
    return True


def _tell(client: Any, what: str, level: int, message: str) -> None:
    told = _TOLD.setdefault(what, weakref.WeakSet())
    if client not in told:
        told.add(client)
        logger.log(level, message)
