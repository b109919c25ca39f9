from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import LocalExecutor
from tests.solvers.problems import OverlappingExecutor


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
