"""A folder of compiled code is used where it fits, and refused in words where it does not; many may fill one cache."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dkgp.errors import InputError
from dkgp.kernels.tiles import code_cache, kept_code

pytestmark = pytest.mark.portable

# One small function, so that a process takes a second.
USE = """
import logging, sys
logging.basicConfig(format="%(message)s")
from numba import float64
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles import code_cache, kept_code

@cached_njit(nogil=True)
def work(x):
    return x + 1.0

assert work(1.0) == 2.0
print(kept_code.compile_target()[0], sum(work.stats.cache_hits.values()), work._cache.cache_path)
if len(sys.argv) > 1:
    open(sys.argv[1], "w").write(code_cache.describe_here("host"))
"""


def run(folder: Path, *arguments: str, **environment: str) -> tuple[list[str], str]:
    script = folder / "use.py"
    script.write_text(USE)
    others = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "DKGP_"))}
    done = subprocess.run(
        [sys.executable, script, *arguments], env={**others, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of `work`, its script beside it."""
    folder = tmp_path_factory.mktemp("filled")
    target = kept_code.target_environment("x86-64-v3" if _runs_v3() else "host")
    run(folder, str(folder / kept_code.DESCRIPTION), NUMBA_CACHE_DIR=str(folder), **target)
    return folder


def _runs_v3() -> bool:
    try:
        kept_code.require_target("x86-64-v3")
    except InputError:
        return False
    return True


def test_what_lies_in_the_folder_is_used_and_nothing_is_compiled(filled: Path, tmp_path: Path) -> None:
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "own"), kept_code.VARIABLE: str(filled)}
    (name, hits, _), said = run(filled, **own)
    assert (name, hits) == (json.loads((filled / kept_code.DESCRIPTION).read_text())["cpu_name"], "1")
    assert said == ""
    assert list((tmp_path / "own").rglob("*.nbc")) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": "riscv64"}, "it is for riscv64 and this machine is"),
        ({"cpu_features": "+avx2,+moonbeam"}, "this processor has no moonbeam"),
        ({"numba": "0.1"}, "it was made by numba 0.1 and this is"),
        ({"sources": "0"}, "it was made from other loops than this dkgp's"),
        ({"cpu_name": None}, "cannot be read"),
    ],
    ids=["machine", "processor", "numba", "loops", "damaged"],
)
def test_a_folder_that_does_not_fit_is_refused_in_words(
    filled: Path, tmp_path: Path, changes: dict[str, str | None], words: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    description = json.loads((filled / kept_code.DESCRIPTION).read_text()) | changes
    (tmp_path / kept_code.DESCRIPTION).write_text("{" if None in changes.values() else json.dumps(description))
    monkeypatch.setenv(kept_code.VARIABLE, str(tmp_path))
    assert kept_code.kept_folder.__wrapped__(code_cache.SOURCES_STAMP) is None
    assert words in caplog.text
    assert "compiles its own" in caplog.text


def test_a_process_that_cannot_use_the_folder_goes_on_with_a_cache_of_its_own(filled: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    description = json.loads((filled / kept_code.DESCRIPTION).read_text())
    (other / kept_code.DESCRIPTION).write_text(json.dumps({**description, "cpu_features": "+moonbeam"}))
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "own"), kept_code.VARIABLE: str(other)}
    (_, hits, place), said = run(filled, **own)
    assert (hits, Path(place).parent) == ("0", tmp_path / "own")
    assert "has no moonbeam" in said
    assert len(list((tmp_path / "own").rglob("*.nbc"))) == 1


def test_code_for_another_processor_is_not_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kept_code.TARGETS, "moon", ["moonbeam"])
    with pytest.raises(InputError, match="has no moonbeam"):
        kept_code.require_target("moon")


# Each process adds entries to the same index; Numba's own would lose some, or give two entries one file.
WRITER = """
import sys, time
from pathlib import Path
from dkgp.kernels.tiles.code_cache import _SharedFiles
files = _SharedFiles(sys.argv[1], "function", "stamp")
Path(sys.argv[1], f"ready-{sys.argv[2]}").touch()
while len(list(Path(sys.argv[1]).glob("ready-*"))) < 3:
    time.sleep(0.01)
for number in range(40):
    files.save((sys.argv[2], number), f"{sys.argv[2]} {number}")
"""


def test_concurrent_writers_lose_no_entry_and_share_no_file(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(number)]) for number in range(3)]
    assert [writer.wait(240) for writer in writers] == [0, 0, 0]
    files = code_cache._SharedFiles(str(tmp_path), "function", "stamp")
    index = files._load_index()
    assert len(index) == len(set(index.values())) == 120
    assert all(files.load(key) == f"{key[0]} {key[1]}" for key in index)
    assert pickle.loads(next(tmp_path.glob("*.nbc")).read_bytes())


WAITING = """
import sys, time
from dkgp.kernels.compiler import cached_njit
from numba.core import event

compiled = []
class Count(event.Listener):
    def on_start(self, which): compiled.append(which.data["dispatcher"].py_func.__name__)
    def on_end(self, which): pass
event.register("numba:compile", Count())

@cached_njit(nogil=True)
def slow(x):
    return x.sum() + x.std() + x.mean()

import numpy as np
slow(np.ones(3))
print(compiled.count("slow"))
"""


def test_what_one_process_compiles_the_others_wait_for(tmp_path: Path) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert sorted(process.communicate(timeout=240)[0].strip() for process in processes) == ["0", "1"]
