from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True)
def _single_threaded_blas() -> Iterator[None]:
    # Matrices this small gain nothing from threads, and lose much where other work shares the cores.
    with threadpool_limits(1):
        yield
