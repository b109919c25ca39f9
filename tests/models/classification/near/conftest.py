"""An executor of one thread, once a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dkgp.cluster import LocalExecutor


@pytest.fixture(scope="module")
def one_thread() -> Iterator[LocalExecutor]:
    with closing(LocalExecutor(1)) as executor:
        yield executor
