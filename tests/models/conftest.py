from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor


@pytest.fixture(scope="module")
def executor() -> Iterator[BlockExecutor]:
    local = LocalExecutor(2)
    yield local
    local.close()
