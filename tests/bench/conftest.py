from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.in_process import contenders_in_process

__all__ = ["contenders_in_process"]


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread_in_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        yield
