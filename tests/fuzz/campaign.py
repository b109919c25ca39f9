"""Damaged input after damaged input, in a process of its own: it may take as much memory as it likes, or die.

    python -m tests.fuzz.campaign FOLDER COUNT [SUBJECT...]

Each line of its output is a case that is done, in JSON, so that one that ends the process is known.
"""

from __future__ import annotations

import collections
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.cli.invoke import files_below, run
from tests.fuzz.subjects import Subject, build

# Of a command on a file of kilobytes.
SECONDS, PEAK_BYTES, MESSAGE_CHARACTERS = 20, 400 * 2**20, 8000
# Beyond what the process has when all is built: what a file only promises must not be taken at its word.
ADDRESS_BYTES = 3 * 2**30
ACCEPTED = (0, 2, 3)


class TooLongError(BaseException):
    """A command took more processor seconds than `SECONDS`."""


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def complaints(subject: Subject, folder: Path, seed: int) -> tuple[list[str], dict[str, Any]]:
    """Return the faults in a command's answer to a damaged input, and the case."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    place = subject.copied(folder)
    what = subject.damage(place, rng)
    before = {name: Path(name).read_bytes() for name in files_below(folder)}
    out = folder / "out.zarr"
    command = [str(part) for part in subject.command(place, out)]
    _reset_peak()
    resident, began = _status("VmRSS"), time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        result = run(*command)
    except TooLongError:
        return [f"took more than {SECONDS} processor seconds\n{traceback.format_exc()[-1500:]}"], {
            "what": what,
            "exit_code": None,
        }
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    seconds, peak = time.perf_counter() - began, _status("VmHWM") - resident
    case = {"what": what, "said": result.stderr[-300:], "exit_code": result.exit_code, "seconds": seconds, "peak": peak}
    wrong = []
    text = result.stderr
    # Of a run that is gone on with, and of hyperparameters that no solver gets far with.
    accepted = (*ACCEPTED, 4) if command[0] == "train" else ACCEPTED
    if result.exit_code not in accepted:
        wrong.append(f"exit code {result.exit_code}")
    if "bug in dkgp" in text or "Traceback" in text:
        wrong.append("it takes itself for a bug")
    if "out of memory" in text:
        wrong.append("out of memory")
    if result.exit_code not in (0, 4):
        if len(re.findall(rf"^dkgp {command[0]}: ", text, re.MULTILINE)) + text.count("\nError: ") != 1:
            wrong.append("not one message")
        after = {name: Path(name).read_bytes() for name in files_below(folder)}
        if after != before:
            wrong.append(f"files: {sorted(set(after) ^ set(before)) or 'changed'}")
        if out.exists():
            wrong.append("something is left of the output")
    if len(text) > MESSAGE_CHARACTERS:
        wrong.append(f"{len(text):,} characters")
    if odd := sorted({character for character in text if not character.isprintable() and character not in "\n\t\r"}):
        wrong.append(f"characters that a terminal obeys: {odd}")
    if peak > PEAK_BYTES:
        wrong.append(f"{peak / 2**20:.0f} MiB")
    return [f"{each}: {text[-600:]}" for each in wrong], case


def main(folder: Path, count: int, names: list[str]) -> None:
    def too_long(*_: object) -> None:
        raise TooLongError

    folder.mkdir(exist_ok=True)
    (folder / "whole").mkdir()
    subjects = build(folder / "whole")
    # Files of these tests need not outlive the power.
    os.fsync = os.fstat
    for name in names or subjects:
        # Whole, each is taken.
        told = complaints(replace(subjects[name], damage=lambda *_: ""), folder / "case", 0)[1]
        assert told["exit_code"] == (4 if name == "checkpoint" else 0), (name, told)
        shutil.rmtree(folder / "case")
    chosen = names or list(subjects)
    signal.signal(signal.SIGPROF, too_long)
    limit = _status("VmSize") + ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    exits: collections.Counter[str] = collections.Counter()
    for number in range(count):
        name = chosen[number % len(chosen)]
        seed = zlib.crc32(f"{name} {number // len(chosen)}".encode())
        print(json.dumps({"begins": [name, seed]}), flush=True)
        case = folder / "case"
        wrong, told = complaints(subjects[name], case, seed)
        exits[f"{told['exit_code']}"] += 1
        print(json.dumps({"case": [name, seed], "wrong": wrong, **told}), flush=True)
        shutil.rmtree(case)
    print(json.dumps({"exits": exits}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
