"""Tests that run in a copy of the checkout, each run in a process forked from one that has the libraries loaded.

Of each test it is noted once, in the copy as it is, which lines of dkgp it runs and what time it takes. A mutant is one
file changed in a second copy, of hard links to the first; what Python and Numba keep of the changed file is left out
of that copy, and nothing that a mutant compiles survives it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

__all__ = ["Copy", "Outcome", "Ran", "TestFile"]

QUICK = "not slow and not faults and not portable"
OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0", "--tb=line"]
# Loaded once, by the process that all others are forked from: third parties' alone, no line of dkgp.
LIBRARIES = (
    "coverage", "dask", "distributed", "hypothesis", "mpmath", "numba", "pandas", "scipy.linalg", "scipy.optimize",
    "scipy.special", "scipy.stats", "sklearn.base", "xarray", "zarr",
)  # fmt: skip
SLOWER = 4.0
MEMORY_BYTES = 6 * 2**30
# Without a hundredth of a second of processor time for so many looks, a run has locked up. Looks, not seconds: a
# machine that puts everything to sleep for a while stops the looking too.
LOOK_SECONDS, LOOKS = 0.1, 900
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Ran:
    """One test as it ran unchanged: its name, processor seconds, and the lines of each file of dkgp that it ran."""

    name: str
    seconds: float
    lines: dict[str, list[int]]


@dataclass(frozen=True)
class TestFile:
    """The tests of one file that passed, and those that did not."""

    __test__ = False

    name: str
    tests: list[Ran]
    failed: list[str]


@dataclass(frozen=True)
class Outcome:
    """End of a run of tests: pytest's exit status, or why it has none, and the first test that failed."""

    status: int | str
    failed: str
    seconds: float

    @property
    def passed(self) -> bool:
        """True if all tests ran and passed."""
        return self.status == 0


@dataclass(eq=False)
class _Watcher:
    """A plugin of pytest that follows the tests of one process."""

    coverage: Any = None
    limits: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self.coverage is not None:
            self.coverage.switch_context(item.nodeid)
        before = sum(os.times()[:4])
        # Ends the process, after so many seconds of all its threads' computing.
        signal.setitimer(signal.ITIMER_PROF, self.limits.get(item.nodeid, 0.0))
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self.seconds[item.nodeid] = sum(os.times()[:4]) - before
        return result  # type: ignore[return-value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class Copy:
    """The copy of a checkout in `work`, and in it what is known of its tests.

    Parameters
    ----------
    root : Path
        The checkout; nothing is written there.
    work : Path
        A folder of this class alone; kept between runs, because of what is compiled and noted there.
    """

    def __init__(self, root: Path, work: Path) -> None:
        self._root, self._work = root, work
        self.base, self._changed = work / "base", work / "mutant"
        work.mkdir(parents=True, exist_ok=True)
        self._synchronise()

    def _synchronise(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self._root, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names = {name for name in listed.stdout.split("\0") if name and (self._root / name).is_file()}
        for name in names:
            source, target = self._root / name, self.base / name
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                # A new file, not a new content: and no compiled file has its time.
                target.unlink(missing_ok=True)
                shutil.copy2(source, target)
                _forget(self.base, name)
        present = {str(path.relative_to(self.base)) for path in self.base.rglob("*.py")}
        for name in present - names:
            (self.base / name).unlink()
            _forget(self.base, name)

    def tests(self, name: str) -> TestFile:
        """Run a test file unchanged, or read what came of it, while it and dkgp are the same."""
        kept = self._work / "tests" / f"{name.replace('/', '-')}.json"
        stamp = self._stamp(name)
        with suppress(FileNotFoundError):
            document = json.loads(kept.read_text())
            if document["stamp"] == stamp:
                return TestFile(name, [Ran(**test) for test in document["tests"]], [])
        output = self._work / "noted.json"
        output.unlink(missing_ok=True)
        ended = self._forked(self.base, lambda: _note(self.base, name, output), seconds=3600.0)
        if not output.exists():
            raise SystemExit(f"{name} did not run: {ended.status}\n{self.printed()}")
        document = json.loads(output.read_text())
        if not document["failed"]:
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps({"stamp": stamp, "tests": document["tests"]}))
        return TestFile(name, [Ran(**test) for test in document["tests"]], document["failed"])

    def _stamp(self, name: str) -> str:
        """Return the digest of the package, of the tests' shared code, and of the file."""
        digest = hashlib.sha256()
        files = (self.base / "tests").rglob("*.py")
        shared = [path for path in files if not path.name.startswith("test_") and path.parent.name != "mutants"]
        for path in (*sorted((self.base / "dkgp").rglob("*.py")), *sorted(shared), self.base / name):
            digest.update(str(path.relative_to(self.base)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()

    def run(self, tests: Sequence[Ran], allowance: float, name: str, source: str) -> Outcome:
        """Run tests in their order until one fails, with `source` as the file `name`.

        A test that computes for `SLOWER` times as long as it did unchanged, and for `allowance` seconds besides, fails.
        """
        shutil.rmtree(self._changed, ignore_errors=True)
        shutil.copytree(self.base, self._changed, copy_function=os.link, symlinks=True)
        path = self._changed / name
        path.unlink()
        path.write_text(source)
        _forget(self._changed, name)
        limits = {test.name: SLOWER * test.seconds + allowance for test in tests}
        result = self._work / "failed.txt"
        result.unlink(missing_ok=True)
        outcome = self._forked(
            self._changed, lambda: _test(limits, self._work / "scratch", result), sum(limits.values())
        )
        failed = result.read_text() if result.exists() else ""
        return Outcome(outcome.status, failed, outcome.seconds)

    def printed(self) -> str:
        """The end of what the last run printed."""
        return (self._work / "output.txt").read_text(errors="replace")[-4000:]

    def _forked(self, folder: Path, work: Callable[[], int], seconds: float) -> Outcome:
        _load_libraries()
        process = os.fork()
        if process == 0:
            self._become(folder, work, seconds)
        outcome = self._wait(process)
        for left_over in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                left_over.kill()
                left_over.wait(10.0)
        return outcome

    def _wait(self, process: int) -> Outcome:
        idle, before = 0, 0.0
        while True:
            ended, status, usage = os.wait4(process, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return Outcome(code if code >= 0 else f"signal {-code}", "", usage.ru_utime + usage.ru_stime)
            used = _processor_seconds(process)
            idle, before = (idle + 1 if used - before < 0.01 else 0), max(used, before)
            if idle > LOOKS:
                os.kill(process, 9)
                os.waitpid(process, 0)
                return Outcome("locked up", "", used)
            time.sleep(LOOK_SECONDS)

    def _become(self, folder: Path, work: Callable[[], int], seconds: float) -> None:
        """Run the forked process; this never returns."""
        status = 70
        try:
            output = os.open(self._work / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 10))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            os.chdir(folder)
            os.environ["PYTHONPATH"] = str(folder)
            elsewhere = {"", str(self._root), str(self.base), str(self._changed), str(Path.cwd())}
            sys.path[:] = [str(folder), *(entry for entry in sys.path if entry not in elsewhere)]
            for module in [module for module in sys.modules if module.split(".")[0] in {"dkgp", "tests"}]:
                del sys.modules[module]
            sys.path_importer_cache.clear()
            importlib.invalidate_caches()
            status = work()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


@cache
def _load_libraries() -> None:
    """Load, the first time, what processes that are forked from this one then have."""
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        pytest.main(["--version", "--version"])  # and its plugins
    # Nothing of all this is garbage that a forked process should look for.
    gc.freeze()
    # What a killed test leaves behind becomes a child of this process, which ends it.
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _forget(folder: Path, name: str) -> None:
    """Remove what Python keeps of a file that is a new one, and all that Numba does where it holds compiled functions.

    dkgp's own stamp on compiled code covers the file of the function and `dkgp.kernels`, and so whatever is released;
    here a function may have been inlined from anywhere.
    """
    path = folder / name
    for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        kept.unlink()
    compiles = path.suffix == ".py" and path.exists() and "njit" in path.read_text()
    if compiles or name.startswith("dkgp/kernels/"):
        for kept in folder.glob("dkgp/**/__pycache__/*.nb[ic]"):
            kept.unlink()


def _processor_seconds(process: int) -> float:
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process)
        for member in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system
    return total


def _check_place(folder: Path) -> None:
    import dkgp

    if not Path(str(dkgp.__file__)).is_relative_to(folder):
        raise AssertionError(f"dkgp is imported from {dkgp.__file__}, not from {folder}")


def _note(folder: Path, name: str, output: Path) -> int:
    """In a process of its own: run a test file and write down each test's seconds and lines."""
    import coverage

    measured = coverage.Coverage(data_file=None, source=[str(folder / "dkgp")], config_file=False)
    watcher = _Watcher(measured)
    measured.start()
    status = int(pytest.main([*OPTIONS, "-m", QUICK, f"--basetemp={output.parent / 'scratch'}", name], [watcher]))
    measured.stop()
    _check_place(folder)
    data = measured.get_data()
    lines: dict[str, dict[str, list[int]]] = {test: {} for test in watcher.seconds}
    for file in sorted(data.measured_files()):
        for line, contexts in sorted(data.contexts_by_lineno(file).items()):
            for test in filter(None, contexts):
                lines[test].setdefault(str(Path(file).relative_to(folder)), []).append(line)
    tests = [
        {"name": test, "seconds": round(watcher.seconds[test], 3), "lines": lines[test]}
        for test in watcher.seconds
        if test in watcher.passed and test not in watcher.failed
    ]
    failed = watcher.failed if status not in (0, 5) else []
    output.write_text(json.dumps({"tests": tests, "failed": failed or ([name] if status not in (0, 5) else [])}))
    return status


def _test(limits: dict[str, float], scratch: Path, result: Path) -> int:
    """In a process of its own: run tests, each within its seconds, until one fails, and write down which."""
    watcher = _Watcher(limits=limits)
    status = int(pytest.main([*OPTIONS, "-x", f"--basetemp={scratch}", *limits], [watcher]))
    if status == 0:
        _check_place(Path.cwd())
    result.write_text(watcher.failed[0] if watcher.failed else "")
    return status
