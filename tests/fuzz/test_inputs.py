"""Damaged input of every kind: a message and exit code 2 or 3, no bug, no hang, no memory, nothing written."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkgp
from dkgp.errors import DkgpError
from dkgp.service.specification import COMMANDS, job_from_options, options_schema
from tests.data.sources.forms import FORMS
from tests.fuzz.mutations import changed_json, damaged

ROOT = Path(dkgp.__file__).resolve().parents[1]


def campaign(folder: Path, count: int, seconds: float, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """So many cases, of subjects or of all, in a process of its own; one that ends it shows by what was begun last."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.campaign", str(folder), str(count), *names],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, f"{lines[-1:]}\n{ended.stderr[-3000:]}"
    return [line for line in lines if "case" in line]


def taken_well(cases: list[dict[str, Any]], count: int) -> None:
    assert len(cases) == count
    bad = [case for case in cases if case["wrong"]]
    wrong = [f"{case['case']} ({case['what']}): {text}" for case in bad for text in case["wrong"]]
    assert not bad, "\n".join([f"{len(bad)} cases", *wrong[:20]])
    exits = collections.Counter(case["exit_code"] for case in cases)
    print(f"\n{count} damaged inputs, exit codes {dict(exits)}, {max(case['peak'] for case in cases):,} bytes at most")
    # Most damage is found, and some is harmless: neither all commands fail, nor does nothing reach them.
    assert exits[3] > 0.4 * count
    assert exits[0] > 0.05 * count


# Everything that is read, and of each kind of store one of the damages that stores take.
READ = ("table", "labels", "hyperparameters", "checkpoint", "coded, its manifest", "data again", "predictions")
READ += ("finished kernels",)
READ += ("configuration", *FORMS, "data, chunks", "model, arrays", "factor, manifest", "sparse", "fixed-size, chunks")
READ += ("logistic, arrays", "gp, manifest", "labels near", "checkpoint shown", "model, shown", "prediction, shown")


@pytest.mark.long
def test_damaged_inputs_are_refused_in_words(tmp_path: Path) -> None:
    taken_well(campaign(tmp_path / "some", len(READ), 200.0, READ), len(READ))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_damaged_inputs_are_refused_in_words(tmp_path: Path) -> None:
    taken_well(campaign(tmp_path / "many", 10_000, 2900.0), 10_000)


def jobs(command: str, folder: Path) -> dict[str, Any]:
    """Options of a command that are taken: what it requires, and some that it does not."""
    places = {name: str(folder / name) for name in options_schema(command).get("required", [])}
    return {**places, **({"target": "y", "sources": [str(folder / "d.csv")]} if command == "fit" else {})}


def refusals_of_jobs(folder: Path, count: int) -> int:
    """Offer so many changed job documents; how many were refused."""
    refused = 0
    for number in range(count):
        command = COMMANDS[number % len(COMMANDS)]
        rng = np.random.default_rng(number)
        options = {**jobs(command, folder), "seed": 3, "solver": {"tolerance": 1e-4}, "settings": {"seed": 1}}
        if rng.random() < 0.3:
            text = damaged(json.dumps(options).encode(), rng)
            try:
                options = json.loads(text)
            except (ValueError, RecursionError):
                continue
        else:
            options = changed_json(options, rng)
        error = refusal(command, options)
        if error is not None:
            assert error.exit_code in (2, 3)
            assert 0 < len(str(error)) < 8000
            refused += 1
    return refused


def refusal(command: str, options: Any) -> DkgpError | None:
    """Read a job; the refusal, where there is one. Any other error is the test's."""
    try:
        job_from_options(command, options)
    except DkgpError as error:
        return error
    return None


@pytest.mark.long
def test_changed_job_documents_are_refused_in_words(tmp_path: Path) -> None:
    assert 100 < refusals_of_jobs(tmp_path, 240) <= 240
