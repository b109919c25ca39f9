"""Fixtures of all tests: seeded random numbers, and settings that make runs repeatable."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from tests.covering import thin_out
from tests.fault_table import FaultTable

# Threads of OpenMP, scikit-learn's, sleep while they wait for each other: the other process of tests has the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Compiled code is slow when first called, so a deadline per example would say nothing; derandomised, a failure
# in continuous integration is the same failure by hand.
settings.register_profile("dkgp", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("dkgp")


@pytest.fixture(scope="session", autouse=True)
def no_services_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands find the services that the tests start, and none that this user runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files of tests need not outlive the power: a quarter of the tests' time would go to `fsync`.

    It is still called, and fails on what is no open file; processes that tests start wait as ever.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


class _Direct:
    """asyncio, whose threads are the caller's own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def to_thread(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)


@pytest.fixture(scope="session", autouse=True)
def zarr_starts_no_threads() -> Iterator[None]:
    """Files and codecs of small stores take no threads: handing each call over takes a quarter of a store's time.

    Processes that tests start do as ever.
    """
    import zarr.codecs._v2
    import zarr.codecs.blosc
    import zarr.codecs.gzip
    import zarr.codecs.zstd
    import zarr.storage._local

    codecs = zarr.codecs
    with pytest.MonkeyPatch.context() as patch:
        for module in (codecs._v2, codecs.blosc, codecs.gzip, codecs.zstd, zarr.storage._local):
            patch.setattr(module, "asyncio", _Direct())
        yield


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """On matrices this small a second BLAS thread gains nothing, and beside other busy processes it costs minutes."""
    with threadpool_limits(1, "blas"):
        yield


@pytest.fixture(scope="session", autouse=True)
def expansions_are_proven_once() -> Iterator[None]:
    """Share the expansions of products by cells among plans on the same inputs: a small plan does little else."""
    from dkgp.operators.cells import cross, plan, proof

    proven = functools.lru_cache(maxsize=256)(proof.Expansion)
    with pytest.MonkeyPatch.context() as patch:
        for module in (plan, cross):
            patch.setattr(module, "Expansion", proven, raising=False)
        yield


_MODULES = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def what_stays_is_not_looked_through() -> Iterator[None]:
    """After every so many modules, what outlived them goes where the garbage collector does not look.

    Reports, compiled code and imports become millions of objects, and each call of `gc.collect` would take seconds.
    """
    yield
    if next(_MODULES) % 16 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[Any]:
    """An executor of one thread in this process."""
    from dkgp.cluster import LocalExecutor

    with closing(LocalExecutor(1)) as executor:
        yield executor


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator whose seed is the test's own name: the same numbers in every run and any order."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the tests: they stay to the end, and going through them takes a third of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Files with a test of several seconds. They come first: one that began when the others are done would be waited for.
FIRST = (
    "tests/cli/test_finished.py",
    "tests/cli/test_runs.py",
    "tests/models/test_linear.py",
    "tests/service/queue/test_earlier_queue.py",
    "tests/service/running/test_runner.py",
    "tests/service/test_settings.py",
    "tests/service/test_serve.py",
    "tests/service/web/test_generated_calls.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    thin_out(items)
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-table", metavar="FILE", help="write the table of faults, outcomes and seconds as Markdown"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Garbage in cycles is little, and what is looked through for it is all that was compiled and imported.
    gc.set_threshold(50_000, 20, 20)
    config.pluginmanager.register(FaultTable(config.getoption("--fault-table")))
