from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import single_threaded_blas
from tests.solvers.problems import OverlappingExecutor


@pytest.fixture(autouse=True)
def _single_threaded_blas() -> Iterator[None]:
    # A solve sees to this itself; tests also call the parts of one.
    with single_threaded_blas():
        yield


@pytest.fixture(scope="session")
def executor() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(2)
    yield executor
    executor.close()


@pytest.fixture(scope="session")
def overlapping() -> Iterator[OverlappingExecutor]:
    executor = OverlappingExecutor(2)
    yield executor
    executor.close()
