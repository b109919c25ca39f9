"""A package of three functions in a checkout of its own: which of its mutants survive, and what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.plugin import ROOT

SOURCE = """
def bound(a, b):
    return a + b


def never_called(a):
    return a * 2


def forever(n):
    while n > 0:
        n -= 1
    return n
"""
TESTS = """
from dkgp.room.sums import bound, forever


def test_bound():
    assert bound(1, 3) == 4


def test_forever():
    assert forever(3) == 0
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    pytest.importorskip("cosmic_ray", reason="`make mutants` installs what it runs with")
    pytest.importorskip("coverage", reason="`make mutants` installs what it runs with")
    folder = tmp_path / "checkout"
    for name, text in {
        "dkgp/__init__.py": "",
        "dkgp/room/__init__.py": "",
        "dkgp/room/sums.py": SOURCE,
        "tests/room/test_sums.py": TESTS,
        "docs/reference/records/none": "",
        ".gitignore": ".mutants/\n",
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    (folder / "tests/room/stored.zip").write_bytes(b"\xb6njit")  # no text
    tool = folder / "tests" / "mutants"
    tool.mkdir()
    for name in ("__main__.py", "copies.py", "mutations.py"):
        (tool / name).write_text((ROOT / "tests" / "mutants" / name).read_text())
    (tool / "equivalent.toml").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def mutants(folder: Path, *options: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "room", "--loading-seconds", "2", *options],
        cwd=folder, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def record(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "docs/reference/records/mutants.json").read_text())
    files: dict[str, dict[str, Any]] = document["files"]
    assert set(files) <= {"dkgp/room/__init__.py", "dkgp/room/sums.py"}
    return files["dkgp/room/sums.py"]


def test_survivors_are_shown_and_killed_by_a_new_test(checkout: Path) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*.py")}
    mutants(checkout, "--sample", "50")
    first = record(checkout)
    assert first["run"] == first["sites"] > 5
    assert first["killed"] == first["run"] - len(first["survived"])
    never = [row for row in first["survived"] if row["line"] == 7]
    assert [row["before"] for row in never] == ["return a * 2"] * 2  # at the sign and at the number
    assert {row["note"] for row in never} == {"no test runs this line as Python"}
    # `1 - 3`, `1 * 3` and whatever else was drawn is not 4.
    assert not [row for row in first["survived"] if row["line"] == 3]
    assert {path: path.read_bytes() for path in before} == before

    with (checkout / "tests/room/test_sums.py").open("a") as file:
        file.write(
            "\n\ndef test_never():\n    from dkgp.room.sums import never_called\n\n    assert never_called(5) == 10\n"
        )
    # Nothing is left to run; then those that survived meet the new test.
    assert " -> " not in mutants(checkout, "--sample", "50")
    assert record(checkout) == first
    mutants(checkout, "--sample", "50", "--again")
    second = record(checkout)
    assert not [row for row in second["survived"] if row["line"] == 7]
    assert second["killed"] == first["killed"] + 2

    # What nobody could see is no survivor, and one that is killed needs no reason.
    if second["survived"]:
        row = second["survived"][0]
        entry = {"file": "dkgp/room/sums.py", "before": row["before"], "after": row["after"], "reason": "the same"}
        lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
        (checkout / "tests/mutants/equivalent.toml").write_text("\n".join(["[[equivalent]]", *lines, ""]))
        mutants(checkout, "--sample", "50")
        third = record(checkout)
        assert third["equivalent"] == 1
        assert len(third["survived"]) == len(second["survived"]) - 1


def test_one_that_never_ends_is_killed_and_a_broken_off_run_goes_on(checkout: Path) -> None:
    source = (checkout / "dkgp/room/sums.py").read_text()
    (checkout / "dkgp/room/sums.py").write_text(source[source.index("def forever") :].replace("n > 0", "n"))
    (checkout / "tests/room/test_sums.py").write_text(
        "from dkgp.room.sums import forever\n\n\ndef test_forever():\n    assert forever(3) == 0\n"
    )
    assert "goes on" in mutants(checkout, "--stop-after", "0")
    said = mutants(checkout)
    assert "killed by signal 27" in said, said  # SIGPROF: `n += 1` goes up for ever
    assert record(checkout)["killed"] >= 1


def test_tests_that_fail_without_any_change_are_named(checkout: Path) -> None:
    with (checkout / "tests/room/test_sums.py").open("a") as file:
        file.write("\n\ndef test_wrong():\n    assert bound(1, 1) == 3\n")
    said = mutants(checkout, code=1)
    assert "fail without any change:\ntests/room/test_sums.py::test_wrong" in said
    assert not (checkout / "docs/reference/records/mutants.json").exists()


def test_a_room_that_is_none_is_refused(checkout: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "rom"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "no room or file of dkgp: rom" in ended.stderr
