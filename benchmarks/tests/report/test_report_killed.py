"""A report whose process is killed goes on: parts that were done as they were, draws of the one under way kept."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cli.processes import killed

pytestmark = pytest.mark.faults

SECONDS = 240.0
SETTINGS = ("--test-samples", "30", "--subset", "60", "--draws", "3", "--tol", "1e-2")
PARTS = ("--part", "gbcd-table-4", "--part", "gbcd-figure-4", "--sizes", "60,120", "--basis-size", "20")


def command(folder: Path) -> list[str]:
    # Table 4 first, and quick; then Figure 4, whose draws are kept one by one.
    return [sys.executable, "-m", "dkgp", "bench", "papers", "--report", str(folder), *SETTINGS, *PARTS]


def test_a_report_that_is_killed_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    kept = folder / "partial" / "gbcd-figure-4" / "draw-0.json"
    killed("dkgp_benchmarks.papers.parts.gbcd:_grown", command(folder)[3:], call=2)
    draw = kept.read_bytes()
    first = (folder / "records" / "gbcd-table-4_friedman1.json").read_bytes()
    assert not (folder / "records" / "gbcd-figure-4.json").exists()
    page = (folder / "index.html").read_text(encoding="utf-8")
    HTMLParser().feed(page)
    assert page.rstrip().endswith("</html>")
    assert "1 of 2 parts, 1 to come" in page

    done = subprocess.run(command(folder), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "gbcd-table-4:friedman1 is there already" in done.stderr
    assert (folder / "records" / "gbcd-table-4_friedman1.json").read_bytes() == first
    record = json.loads((folder / "records" / "gbcd-figure-4.json").read_text(encoding="utf-8"))
    # Seconds are of no other run: the first draw's are in the means that the table shows.
    runs = json.loads(draw)["rows"]
    rows = record["sections"][0]["rows"]
    assert [row["n"] for row in rows] == [row["n"] for row in runs]
    assert "mean of 3 draws" in record["sections"][0]["title"]
    # Draws stay, for more of them to go on with.
    assert kept.read_bytes() == draw
    assert [path.name for path in sorted(kept.parent.glob("*.json"))] == [f"draw-{number}.json" for number in range(3)]
    assert "2 of 2 parts" in (folder / "index.html").read_text(encoding="utf-8")
