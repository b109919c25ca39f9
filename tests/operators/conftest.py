from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import LocalExecutor


@pytest.fixture
def two_threads() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(2)
    yield executor
    executor.close()
