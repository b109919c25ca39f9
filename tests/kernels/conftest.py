from __future__ import annotations

import pytest


@pytest.fixture(params=["single", "double"])
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[False, True], ids=["differences", "expanded"])
def expanded(request: pytest.FixtureRequest) -> bool:
    return request.param
