from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import LocalExecutor


@pytest.fixture
def one_thread() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(1)
    yield executor
    executor.close()
