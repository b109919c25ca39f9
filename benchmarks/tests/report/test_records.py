"""The page of the papers' experiments at their own sizes, docs/reference/papers-full.md, and the records beside it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from dkgp_benchmarks.papers.papers import BenchPapersJob
from dkgp_benchmarks.papers.part import PARTS
from dkgp_benchmarks.papers.verdicts.verdict import UNEXPLAINED
from dkgp_benchmarks.report.run import command_of
from dkgp_benchmarks.report.verdicts import write_verdicts

ROOT = Path(__file__).resolve().parents[3]


def test_the_papers_verdicts_are_those_of_the_record(tmp_path: Path) -> None:
    """The page is what the command writes of the compact records beside it, by the rules as they are now."""
    reference = ROOT / "docs" / "reference"
    job = BenchPapersJob(report="report", data="benchmark-data", full=True)
    records = json.loads((reference / "records" / "papers-full.json").read_text(encoding="utf-8"))["records"]
    for record in records:
        record["verdicts"] = PARTS.find(record["part"]).verdicts(record["sections"], record["variant"])
        assert UNEXPLAINED not in {verdict["why"] for verdict in record["verdicts"]}, record["name"]
    written = tmp_path / "verdicts.md"
    write_verdicts(str(written), records, partial(command_of, job))
    assert written.read_text(encoding="utf-8") == (reference / "papers-full.md").read_text(encoding="utf-8")
