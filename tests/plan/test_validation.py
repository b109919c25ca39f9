"""What a plan is validated by."""

from __future__ import annotations

from pathlib import Path

import pytest

from dkgp.errors import DkgpError
from dkgp.kernels import SquaredExponential
from dkgp.plan.validation import entry_seconds, run_contender


@pytest.mark.long
def test_an_entry_takes_no_longer_than_numpy_needs() -> None:
    kernel = SquaredExponential(gamma=(0.3, 0.3))
    single, double = (entry_seconds(kernel, precision, 1) for precision in ("single", "double"))
    assert 1e-12 < single < double < 1e-7


ADDER = """
import json, sys
import dkgp.errors

terms = json.load(sys.stdin)["terms"]
if not terms:
    raise SystemExit("nothing to add")
print(json.dumps({"sum": sum(terms), "cluster_warnings": ["slow"]}))
"""


def test_a_contender_is_found_wherever_its_package_was_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "contenders_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "adder.py").write_text(ADDER)
    monkeypatch.syspath_prepend(tmp_path)
    warnings: list[str] = []
    module = "contenders_of_mine.adder"
    figures = run_contender({"contender": "adder", "terms": [1, 2]}, module, warn=warnings.append)
    assert (figures, warnings) == ({"sum": 3}, ["slow"])
    with pytest.raises(DkgpError, match="the contender adder failed: nothing to add"):
        run_contender({"contender": "adder", "terms": []}, module)
