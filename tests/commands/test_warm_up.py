"""`dkgp warm-up`: what it refuses, what it remembers, and that helpers say what went wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.warm_up import WarmUpJob, behind, run_warm_up
from dkgp.errors import InputError, StorageError
from dkgp.kernels import parse_kernel
from dkgp.kernels.tiles import code_cache
from dkgp.models import warm_up


def test_a_target_without_a_folder_is_refused() -> None:
    with pytest.raises(InputError, match="needs `into`"):
        run_warm_up(WarmUpJob(target="x86-64-v3"), SilentReporter())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write to"):
        run_warm_up(WarmUpJob(into=str(tmp_path / "file")), SilentReporter())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_needs_its_own_kernel_and_nothing_else() -> None:
    pieces = warm_up.pieces_of_run(parse_kernel("matern32 + 0.5 * linear", n_features=2))
    assert {"matern32/single", "matern32/double", "products/single", "add/double", "pair/double"} <= set(pieces)
    assert not {"power_of_two/single", "matern52/double", "bounded products", "solver smo"} & set(pieces)
    assert len(pieces) == len(set(pieces))
    assert set(pieces) | {"solver smo"} <= set(warm_up.all_pieces())


def test_what_is_compiled_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "FILLED_FOLDER", None)
    monkeypatch.setattr(code_cache, "cache_folder", lambda: tmp_path)
    assert warm_up.missing(["take/single", "shift/single"]) == ["take/single", "shift/single"]
    warm_up.compile_piece("take/single")
    assert warm_up.missing(["take/single", "shift/single"]) == ["shift/single"]
    monkeypatch.setattr(code_cache, "FILLED_FOLDER", tmp_path)
    assert warm_up.missing(["shift/single"]) == []


@pytest.mark.long
def test_what_cannot_be_compiled_is_told() -> None:
    seconds, failures = warm_up.compile_pieces(["nonsense", "take/single"], 1)
    assert list(seconds) == ["take/single"]
    assert "there is no piece 'nonsense'" in failures["nonsense"]


@pytest.mark.parametrize(("free_mebibytes", "count"), [(1_000, 0), (1_600, 1), (3_000, 2), (64_000, 4)])
def test_helpers_take_little_of_the_free_memory(
    free_mebibytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan counts them: on many cores and little memory a first run would take a gibibyte more than it says."""
    counts: list[int] = []

    class Counted:
        def __init__(self, pieces: object, count: int) -> None:
            counts.append(count)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(warm_up, "_Helpers", Counted)
    monkeypatch.setattr(warm_up, "missing", lambda pieces: ["take/single"])
    monkeypatch.setattr(warm_up, "available_cores", lambda: 16)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free_mebibytes * 2**20))
    with warm_up.helped():
        pass
    assert counts == [count]


def test_helpers_end_with_the_work_that_they_stand_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[warm_up._Helpers] = []
    original = warm_up._Helpers.__init__

    def remember(self: warm_up._Helpers, *arguments: object) -> None:
        started.append(self)
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(warm_up._Helpers, "__init__", remember)
    monkeypatch.setattr(warm_up, "missing", lambda pieces: ["take/single"])
    with warm_up.helped(), warm_up.helped():
        pass
    assert len(started) == 1
    assert all(process.poll() is not None for process in started[0]._processes)
    with behind():
        pass
