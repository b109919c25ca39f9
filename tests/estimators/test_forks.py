"""A forked child calls a fitted estimator as its parent did, and gets the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.estimators.forked import DROP_INS
from tests.estimators.test_conformance import ESTIMATORS

pytestmark = pytest.mark.long  # tests/test_forks.py is the quick one


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, str]]:
    """By estimator, each method with its outcome in the child."""
    line = [sys.executable, "-m", "tests.estimators.forked"]
    result = subprocess.run(line, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    answer: dict[str, dict[str, str]] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("name", [*ESTIMATORS, *DROP_INS])
def test_a_forked_child_gets_the_same_from_every_method(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert len(outcomes[name]) >= 3
    assert set(outcomes[name].values()) == {"same"}, outcomes[name]
