"""A disk that fills up as a run writes what it came to: told, nothing lost, and resumed to the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dkgp.data.stores.checkpoint import CheckpointStore
from tests.cli.invoke import files_below, refused, run, run_json
from tests.cli.runs import RUNS, bits
from tests.full_disk import full_for

CASES = [
    ("out/alpha/c/", True),
    pytest.param("out/zarr.json", True, marks=pytest.mark.slow),
    pytest.param("out/dkgp-manifest.json", True, marks=pytest.mark.slow),
    ("run.png", True),
    ("out/gradient/c/", False),
]


@pytest.fixture(scope="module")
def another(stores: dict[str, Any], whole: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what an earlier run of another seed made."""
    out = tmp_path_factory.mktemp("another") / "out"
    run_json(*RUNS["gbcd"].typed(stores, out, "--plot", out.with_name("run.png"), "--seed", 3))
    assert bits(out) != bits(whole("gbcd"))
    return out.parent


@pytest.mark.long
@pytest.mark.parametrize(("part", "earlier"), CASES)
def test_a_disk_that_is_full_at_the_end_of_a_run(
    part: str, earlier: bool, another: Path, stores: dict[str, Any], whole: Callable[[str], Path], tmp_path: Path
) -> None:
    out, plot = tmp_path / "out", tmp_path / "run.png"
    more = ["--plot", plot, *(["--overwrite"] if earlier else [])]
    command = RUNS["gbcd"].typed(stores, out, "--checkpoint-every", 0, *more)
    if earlier:
        shutil.copytree(another, tmp_path, dirs_exist_ok=True)
    before = {name: Path(name).read_bytes() for name in files_below(tmp_path)}
    with full_for(part) as met:
        result = run(*command)
    assert met
    refused(result, "Cannot write", "the disk is full")
    if part != "run.png":
        # What was there is as it was, to the byte, and the checkpoint lies beside it.
        after = {name: Path(name).read_bytes() for name in before if Path(name).exists()}
        assert after == before
        assert CheckpointStore(f"{out}.checkpoint").load_latest() is not None
        assert out.exists() == earlier
    else:
        assert plot.exists() == earlier
        assert not earlier or plot.read_bytes() == before[str(plot)]
    run_json(*command, "--resume")
    assert bits(out) == bits(whole("gbcd"))
    assert plot.read_bytes().startswith(b"\x89PNG")
    # Nothing set aside and nothing half written remains.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.png"]


# Where there is no room, and how often it is met: in the first checkpoint, in the fourth, in the model.
GRID_PLACES = [("out.checkpoint", 1), ("out.checkpoint", 4), ("out/weights/c/", 1)]


@pytest.mark.faults
@pytest.mark.parametrize(("part", "number"), GRID_PLACES)
def test_a_disk_that_fills_up_under_a_grid(
    part: str, number: int, stores: dict[str, Any], whole: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = RUNS["grid"].typed(stores, out, "--checkpoint-every", 0)
    saved: list[int] = []
    save = CheckpointStore.save

    def counted(self: CheckpointStore, *args: Any, **options: Any) -> Any:
        saved.append(1)
        if part != "out.checkpoint" or len(saved) < number:
            return save(self, *args, **options)
        with full_for(part) as met:
            try:
                return save(self, *args, **options)
            finally:
                assert met

    with (
        pytest.MonkeyPatch.context() as patch,
        nullcontext([part]) if part == "out.checkpoint" else full_for(part) as met,
    ):
        patch.setattr(CheckpointStore, "save", counted)
        result = run(*command)
    assert met
    refused(result, "Cannot write", "the disk is full")
    assert not out.exists()
    # Five passes of two widths, and one of the best: what was saved of them is whole, and gone on from.
    held = len(saved) - (part == "out.checkpoint")
    assert held == (number - 1 if part == "out.checkpoint" else 6)
    assert (CheckpointStore(f"{out}.checkpoint").load_latest() is not None) == (held > 0)
    resumed = run(*command, "--resume")
    assert ("resuming after round" if held else "there is no checkpoint") in resumed.stderr
    assert bits(out) == bits(whole("grid"))
    assert list(tmp_path.iterdir()) == [out]
