from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.stage import Stage, staged


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """For requests that are refused: they leave nothing behind."""
    with staged(tmp_path_factory.mktemp("shared")) as stage:
        yield stage
        assert sum(stage.queue.counts().values()) == 0
