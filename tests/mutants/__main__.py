"""Mutation runs (`make mutants ROOM=solvers/risk`): which small changes of a room's code its tests do not see.

Mutants are drawn file by file (`tests.mutants.mutations`); each is met by the tests that run its line, quick ones and
those of the file's own test file first, as far as `--seconds` go; one that none of them fails on survives. What is
known of each stands in the work folder, so that a run which is broken off goes on; the record, one for all rooms,
says for each file how many of how many were killed, and shows every survivor. Survivors that no test could tell from
the original have their reason in `equivalent.toml`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.copies import Copy, Outcome, Ran
from tests.mutants.mutations import Mutant, draw, sites

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
RECORD = ROOT / "docs" / "reference" / "records" / "mutants.json"
# Allowed to each test besides what it takes unchanged: for what it happens to be the first to load, or to compile.
LOADING_SECONDS, COMPILING_SECONDS = 20.0, 600.0
# A second of tests of the file's own test file is worth so many of others.
TWIN_SECONDS = 4.0
# Tests of a room that lie elsewhere than its mirror image, by the start of a source file's name.
ALSO = {
    "dkgp/models/classification/certificate": ["tests/models/test_proofs.py"],
    "dkgp/models/sparse/certificate": ["tests/models/test_proofs.py"],
    "dkgp/models/certificate": ["tests/models/test_exact.py", "tests/models/test_proofs.py"],
    "dkgp/solvers/risk": ["tests/solvers/test_risk.py"],
}


@dataclass(frozen=True)
class Equivalent:
    """A change that nobody could see, and why."""

    file: str
    before: str
    after: str
    reason: str

    def covers(self, file: str, mutant: dict[str, Any]) -> bool:
        """True if this is that mutant, wherever its line has moved."""
        return (self.file, self.before, self.after) == (file, mutant["before"], mutant["after"])


def equivalents() -> list[Equivalent]:
    """The table."""
    return [Equivalent(**row) for row in tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])]


def sources(room: str) -> list[str]:
    """Source files of a room, a folder or a file of dkgp, with or without its `dkgp/`."""
    path = ROOT / "dkgp" / room.removeprefix("dkgp/").rstrip("/")
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not files:
        raise SystemExit(f"no room or file of dkgp: {room}")
    return [str(file.relative_to(ROOT)) for file in files]


def files_of_tests(source: str, wanted: Sequence[str] = ()) -> list[str]:
    """Test files for a source file: those right in the folder that mirrors its own, and of the table; or `wanted`."""
    places = list(wanted)
    if not places:
        folder = Path("tests") / Path(source).parent.relative_to("dkgp")
        while not (ROOT / folder).is_dir():
            folder = folder.parent
        places = [str(folder), *(place for start, more in ALSO.items() if source.startswith(start) for place in more)]
    files = [
        file
        for place in places
        for file in ([ROOT / place] if place.endswith(".py") else sorted((ROOT / place).glob("test_*.py")))
    ]
    return list(dict.fromkeys(str(file.relative_to(ROOT)) for file in files))


def order(source: str, lines: Iterable[int], tests: Sequence[Ran]) -> tuple[list[Ran], bool]:
    """Tests that may see a change of these lines, the likeliest first, and whether any runs one of the lines.

    After those that run the lines come the others of their files, which may share what was made by them. Lines that no
    test runs are of compiled code, or run once, as dkgp is imported: all tests that run any line of the file.
    """

    def rank(test: Ran) -> float:
        twin = Path(test.name.partition("::")[0]).name == f"test_{Path(source).stem}.py"
        return test.seconds / (TWIN_SECONDS if twin else 1.0)

    wanted = set(lines)
    touching = [test for test in tests if wanted & set(test.lines.get(source, ()))]
    if not touching:
        return sorted((test for test in tests if source in test.lines), key=rank) or sorted(tests, key=rank), False
    files = {test.name.partition("::")[0] for test in touching}
    names = {test.name for test in touching}
    beside = [test for test in tests if test.name.partition("::")[0] in files and test.name not in names]
    return [*sorted(touching, key=rank), *sorted(beside, key=rank)], True


def within(tests: Sequence[Ran], seconds: float) -> list[Ran]:
    """The first tests, at least one, that take no more than so many seconds together."""
    total, taken = 0.0, list(tests[:1])
    for test in tests[1:]:
        total += test.seconds
        if total + tests[0].seconds > seconds:
            break
        taken.append(test)
    return taken


class Results:
    """Results of mutants, by file; those of a changed file are discarded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, file: str, source: str) -> dict[str, dict[str, Any]]:
        """Results of a file's mutants, by their keys."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        if self._files.get(file, {}).get("digest") != digest:
            self._files[file] = {"digest": digest, "mutants": {}}
        mutants: dict[str, dict[str, Any]] = self._files[file]["mutants"]
        return mutants

    def note(self, file: str, mutant: Mutant, outcome: Outcome, n_tests: int, n_of: int, reached: bool) -> None:
        """Add an outcome, in the place of an earlier one."""
        self._files[file]["mutants"][mutant.key] = {
            "line": mutant.line,
            "before": mutant.before,
            "after": mutant.after,
            "killed": not outcome.passed,
            "by": outcome.failed or ("" if outcome.passed else f"status {outcome.status}"),
            "tests": f"{n_tests} of {n_of}",
            "reached": reached,
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._files, indent=1))
        new.replace(self._path)


def summary(file: str, results: Iterable[dict[str, Any]], table: Sequence[Equivalent], n_sites: int) -> dict[str, Any]:
    """Return the recorded results of a file."""
    rows = sorted(results, key=lambda row: row["line"])
    named = [row for row in rows if any(entry.covers(file, row) for entry in table)]
    survivors = [row for row in rows if not row["killed"] and row not in named]
    return {
        "sites": n_sites,
        "run": len(rows),
        "killed": sum(row["killed"] for row in rows),
        "equivalent": sum(not row["killed"] for row in named),
        "survived": [
            {"line": row["line"], "before": row["before"], "after": row["after"], "tests": row["tests"]}
            | ({} if row["reached"] else {"note": "no test runs this line as Python"})
            for row in survivors
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the mutants of a room that have not run yet, and write the record."""
    options = _options(arguments)
    files, copy = sources(options.room), Copy(ROOT, options.work)
    results, deadline = Results(options.work / "results.json"), time.monotonic() + options.stop_after
    record = json.loads(options.record.read_text()) if options.record.exists() else {"files": {}}
    for file in files:
        source = (ROOT / file).read_text()
        mutants, known = draw(file, source, options.sample, options.seed), results.of(file, source)
        due = [mutant for mutant in mutants if _is_due(known.get(mutant.key), options.again)]
        if due:
            _run(copy, file, due, results, options, deadline)
        rows = [known[mutant.key] for mutant in mutants if mutant.key in known]
        if rows:
            said = summary(file, rows, equivalents(), len(sites(source)))
            record["files"][file] = {"seed": options.seed, "sample": options.sample} | said
            record["files"] = dict(sorted(record["files"].items()))
            options.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            killed = f"{said['killed']} of {said['run']} killed, {said['equivalent']} equivalent"
            print(f"{file}: {killed}, {len(said['survived'])} survived", flush=True)
        if time.monotonic() > deadline:
            print("stopped: the same command goes on")
            break


def _is_due(known: dict[str, Any] | None, again: bool) -> bool:
    return known is None or (again and not known["killed"])


def _run(
    copy: Copy, file: str, mutants: list[Mutant], results: Results, options: argparse.Namespace, deadline: float
) -> None:
    noted = [copy.tests(name) for name in files_of_tests(file, options.tests)]
    failed = [name for tests in noted for name in tests.failed]
    if failed:
        raise SystemExit(f"these fail without any change:\n{chr(10).join(failed)}\n{copy.printed()}")
    tests = [test for tests in noted for test in tests.tests]
    if not tests:
        raise SystemExit(f"no test of {file} passes")
    orders = {mutant.key: order(file, mutant.lines, tests) for mutant in mutants}
    as_it_is = (ROOT / file).read_text()
    compiled = "njit" in as_it_is or file.startswith("dkgp/kernels/")
    allowance = options.loading_seconds or (COMPILING_SECONDS if compiled else LOADING_SECONDS)
    # As it is, by the very way that a mutant goes: so that nothing but the change can fail.
    outcome = copy.run(within(order(file, (), tests)[0], options.seconds), allowance, file, as_it_is)
    if not outcome.passed:
        raise SystemExit(f"{file} fails without any change: {outcome.failed or outcome.status}\n{copy.printed()}")
    for mutant in mutants:
        if time.monotonic() > deadline:
            return
        ordered, reached = orders[mutant.key]
        chosen = within(ordered, options.seconds)
        outcome = copy.run(chosen, allowance, file, mutant.source)
        results.note(file, mutant, outcome, len(chosen), len(ordered), reached)
        fate = "survived" if outcome.passed else f"killed by {outcome.failed or outcome.status}"
        print(f"{file}:{mutant.line} {mutant.before!r} -> {mutant.after!r}: {fate}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("room", help="a folder or file of dkgp, such as solvers/risk")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each file (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests that each mutant meets at most (20)")
    parser.add_argument("--tests", nargs="*", default=[], help="files or folders of tests, rather than the room's own")
    parser.add_argument("--again", action="store_true", help="those that survived meet the tests as they are now")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds; the same command goes on")
    parser.add_argument(
        "--loading-seconds",
        type=float,
        help=f"allowed to a test besides its own ({LOADING_SECONDS:.0f}; {COMPILING_SECONDS:.0f} where it may compile)",
    )
    parser.add_argument("--record", type=Path, default=RECORD, help="the record that is brought up to date")
    parser.add_argument("--work", type=Path, default=ROOT / ".mutants", help="where the copies are, and what is known")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
