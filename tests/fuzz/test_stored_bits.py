"""No bit that turns in a store goes unnoticed into a result: it is an error, or the result's bits are the same."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invoke import run, run_json
from tests.cli.runs import bits
from tests.fuzz.subjects import build_stores


@dataclass(frozen=True)
class Stored:
    """A store whose bits turn, and the command, but for its output, that has to see it."""

    store: Path
    command: list[object]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    folder = tmp_path_factory.mktemp("stores")
    places = build_stores(folder)
    local, test, hyper = ("--cluster", "none"), places["test"], folder / "hyper.json"
    data, referring = places["data"], folder / "referring.zarr"
    run_json("train", data, "--hyper", hyper, "--out", referring, "--by-reference", *local)
    run_json(
        "classify", places["labels"], "--method", "exact", "--hyper", hyper, "--out", folder / "exact.zarr", *local
    )
    run_json("pursue", data, "--out", folder / "linear.zarr", *local)
    places |= {"exact": folder / "exact.zarr", "linear": folder / "linear.zarr"}

    def predicted(model: Path, *more: object) -> list[object]:
        return ["predict", model, test, *local, *more]

    kinds = {name: Stored(places[name], predicted(places[name])) for name in PLAIN}
    kinds |= {name: Stored(places[name], predicted(places[name], "--variance")) for name in VARYING}
    return kinds | {
        "test data": Stored(test, predicted(places["model"])),
        "data of a model by reference": Stored(data, predicted(referring)),
        "training data": Stored(data, ["train", data, "--hyper", hyper, *local]),
        "checkpoint": Stored(places["checkpoint"], [*places["training"], "--checkpoint", places["checkpoint"]]),
    }


PLAIN = ("model", "fixed-size", "exact", "logistic", "gp", "labels near", "linear")
VARYING = ("factor", "sparse")
KINDS = (*PLAIN, *VARYING, "test data", "data of a model by reference", "training data", "checkpoint")


def outcome(stored: Stored, out: Path, kept: Path) -> dict[str, Any] | None:
    """The bits of the result; None where the command refused, in words."""
    more = ("--resume",) if "--checkpoint" in stored.command else ()
    result = run(*stored.command, *more, "--out", out)
    if "--checkpoint" in stored.command:
        # A run that goes on from a checkpoint saves others.
        shutil.rmtree(stored.store, ignore_errors=True)
        shutil.copytree(kept, stored.store)
    if result.exit_code not in (0, 4):
        assert result.exit_code == 3, (result.exit_code, result.output)
        assert "bug in dkgp" not in result.stderr
        assert not out.exists()
        return None
    found = bits(out)
    shutil.rmtree(out)
    return found


def turn_bits(stored: Stored, count: int, folder: Path, rng: np.random.Generator) -> tuple[int, int]:
    """Turn bit after bit, each alone; how many were told and how many made no difference."""
    kept, out = folder / "kept", folder / "out.zarr"
    shutil.copytree(stored.store, kept)
    whole = outcome(stored, out, kept)
    assert whole is not None
    files = sorted(path for path in stored.store.rglob("*") if path.is_file())
    told = harmless = 0
    for number in range(count):
        # Every file in its turn: the small ones that describe are as important as those of numbers.
        path = files[number % len(files)]
        content = bytearray(path.read_bytes())
        place, bit = int(rng.integers(len(content))), int(rng.integers(8))
        content[place] ^= 1 << bit
        path.write_bytes(bytes(content))
        found = outcome(stored, out, kept)
        if found is None:
            told += 1
        else:
            assert found == whole, f"bit {bit} of byte {place} of {path.relative_to(stored.store)} changed the result"
            harmless += 1
        content[place] ^= 1 << bit
        path.write_bytes(bytes(content))
    return told, harmless


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_turned_bit_is_told_or_makes_no_difference(
    kind: str, stored: dict[str, Stored], tmp_path: Path, rng: np.random.Generator
) -> None:
    told, harmless = turn_bits(stored[kind], 4, tmp_path, rng)
    assert told + harmless == 4
    # A checkpoint that is damaged is passed over: the one before it comes to the same.
    assert told > 0 or kind == "checkpoint"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_many_turned_bits_are_told_or_make_no_difference(
    kind: str, stored: dict[str, Stored], tmp_path: Path, rng: np.random.Generator
) -> None:
    count = 300 if "checkpoint" in kind or "training" in kind else 1000
    told, harmless = turn_bits(stored[kind], count, tmp_path, rng)
    print(f"\n{kind}: {told} of {count} told, {harmless} harmless")
    assert told > 0 or kind == "checkpoint"
