from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dkgp.service.queue.job_queue import JobQueue
from tests.service.problem import Problem, make_problem, make_stand_in


@pytest.fixture(scope="session")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """A tiny dataset and a hyperparameter file."""
    return make_problem(tmp_path_factory.mktemp("problem"))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An "interpreter" whose jobs only pretend to run."""
    return make_stand_in(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    """An empty queue."""
    made = JobQueue(tmp_path / "queue")
    yield made
    made.close()
