from __future__ import annotations

import pytest

from tests.system.problem import Problem, make_problem


@pytest.fixture(scope="session")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return make_problem(tmp_path_factory.mktemp("problem"))
