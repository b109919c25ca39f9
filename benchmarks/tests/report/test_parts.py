"""Every declared experiment of the papers keeps its word: names, settings, data sets, and what it says without data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dkgp_benchmarks.library import Library
from dkgp_benchmarks.papers.papers import BenchPapersJob, choose, items_of
from dkgp_benchmarks.papers.part import PARTS, Part
from dkgp_benchmarks.papers.published import PAPERS

ALL = PARTS.all()


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
def test_declarations(part: Part) -> None:
    assert part.paper in PAPERS
    assert part.items
    assert all(item.startswith(("table ", "figure ")) for item in part.items)
    assert part.shows.endswith(".")
    for full in (False, True):
        settings = part.settings(full=full, given={"seed": 7, "nonesuch": 1})
        assert settings == json.loads(json.dumps(settings))
        assert settings["seed"] == 7
        assert "nonesuch" not in settings
    for name in part.settings(full=False, given={}):
        changed = part.settings(full=False, given={name: "given"})
        assert changed[name] == "given"
    without = part.variants(Library(None), ())
    assert without or part.missing
    for variant in without:
        assert all(isinstance(name, str) for name in part.reads(variant))


def test_no_two_parts_answer_to_one_number() -> None:
    items = [item for part in ALL.values() for item in part.items]
    assert len(items) == len(set(items))
    assert {"2", "3", "4", "5"} <= set(items_of("table"))
    assert {"1", "2", "3", "4"} <= set(items_of("figure"))


def test_a_question_is_of_settings_and_of_the_bytes_of_its_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "kin40k.npz", X=np.eye(4), y=np.arange(4.0))
    job = BenchPapersJob(data=str(tmp_path), parts=("gbcd-table-4:kin40k",))
    library = Library.of(job.data)
    (unit,) = choose(job, library).units
    asked = unit.asked(library)
    assert (asked["variant"], list(asked["data"])) == ("kin40k", ["kin40k"])
    assert len(asked["data"]["kin40k"]) == 64
    (other,) = choose(BenchPapersJob(data=job.data, parts=job.parts, draws=1), library).units
    assert other.asked(library) != asked
    np.savez(tmp_path / "kin40k.npz", X=np.eye(4), y=np.arange(1.0, 5.0))
    assert unit.asked(library)["data"] != asked["data"]
    # What another part takes is no setting of this one.
    (same,) = choose(BenchPapersJob(data=job.data, parts=job.parts), library).units
    assert "sizes" not in same.settings


def test_every_part_says_how_it_is_judged() -> None:
    without = {part.name for part in PARTS.all().values() if part.judge is None}
    assert without == {"scdp-figure-8"}
    for part in PARTS.all().values():
        if part.judge is not None:
            assert part.judge.rule.endswith(".")
            assert all(prose[0].isupper() or prose[0] == "`" for _, prose in part.judge.reasons)
            assert all(prose.endswith(".") for _, prose in part.judge.reasons)
