from __future__ import annotations

import pytest

from dkgp.cluster import BlockExecutor
from tests.models.variance.variance_world import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, executor: BlockExecutor) -> World:
    return make_world(tmp_path_factory.mktemp("world"), executor)
