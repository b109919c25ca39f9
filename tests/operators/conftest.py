from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import single_threaded_blas


@pytest.fixture(autouse=True)
def _single_threaded_blas() -> Iterator[None]:
    with single_threaded_blas():
        yield


def _executor(threads: int) -> Iterator[LocalExecutor]:
    executor = LocalExecutor(threads)
    yield executor
    executor.close()


@pytest.fixture
def one_thread() -> Iterator[LocalExecutor]:
    yield from _executor(1)


@pytest.fixture
def two_threads() -> Iterator[LocalExecutor]:
    yield from _executor(2)
