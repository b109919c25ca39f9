from __future__ import annotations

from collections.abc import Iterator

import pytest

from dkgp.cluster.threads import single_threaded_blas


@pytest.fixture(autouse=True)
def _single_threaded_blas() -> Iterator[None]:
    # What every caller of the tile loops guarantees: the expanded form's product must not be split between threads.
    with single_threaded_blas():
        yield


@pytest.fixture(params=["single", "double"])
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[False, True], ids=["differences", "expanded"])
def expanded(request: pytest.FixtureRequest) -> bool:
    return request.param
