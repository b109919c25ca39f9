from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import LocalExecutor


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
