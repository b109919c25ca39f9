"""Runs of every kind on small data, for what is asked of all: interrupted, killed, finished, resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.invoke import Shell

TRAIN = "train @train --hyper @hyper"
SPARSE = "sparse @train --hyper @hyper"
CLASSIFY = "classify @three --cluster none"
LIKELY = "classify @three --cluster none --hyper @wide"
OTHER_WEIGHTS = ("--class-weight balanced", "another class weight")


@dataclass(frozen=True)
class Run:
    """A command without its output, and an option that makes it another run, with the words of the refusal.

    The interruption comes when so many rounds are on record; of predictions, in the fourth piece.
    """

    command: str
    other: str
    words: str
    rounds: int = 2

    def typed(self, stores: Mapping[str, Any], out: Path, *more: object) -> list[str]:
        """The arguments, with the places of `stores`."""
        return Shell(out.parent, stores).typed(self.command, "--out", out, "--json", *more)

    @property
    def logs(self) -> bool:
        """Whether the command can log its rounds."""
        return not self.command.startswith("predict")


RUNS = {
    "gbcd": Run(f"{TRAIN} --solver gbcd --block-size 50", "--seed 1", "another seed"),
    "gbcd, known noise": Run("train @noisy --hyper @hyper --solver gbcd --block-size 50", "--seed 1", "another seed"),
    "gbcd, linear mean": Run(f"{TRAIN} --solver gbcd --block-size 50 --mean linear", "--mean constant", "another mean"),
    "gbcd, bounded products": Run(
        f"{TRAIN.replace('@hyper', '@narrow')} --block-size 50 --product-error 1e-5",
        "--product-error 2e-5",
        "another product error",
    ),
    "cg": Run(f"{TRAIN} --solver cg", "--precision double", "another precision"),
    "noise model": Run(f"{TRAIN.replace('@hyper', '@uneven')} --solver cg", "--precision double", "another precision"),
    "Student's t": Run(
        f"{TRAIN.replace('@hyper', '@outliers')} --solver cg", "--precision double", "another precision"
    ),
    "pcg, landmarks": Run(f"{TRAIN} --solver pcg --halo 0 --rank 20", "--rank 30", "another preconditioner"),
    "pcg, halo": Run(f"{TRAIN} --solver pcg --halo 24 --leaf 20 --rank 5", "--halo 30", "another preconditioner"),
    "tiled-cholesky": Run(f"{TRAIN} --solver tiled-cholesky", "--precision double", "another precision", rounds=1),
    "greedy basis": Run(f"{SPARSE} --method sggp --basis-size 25", "--seed 1", "another seed"),
    "greedy basis, neighbours": Run(
        f"{SPARSE} --method vif --basis greedy --basis-size 25 --per-round 1 --neighbours 20",
        "--seed 1",
        "another seed",
    ),
    "growing basis": Run(
        f"{SPARSE} --method sggp --basis-size auto --target-distance 0.5 --largest-basis 600",
        "--seed 1",
        "another seed",
    ),
    "fixed-size": Run(f"{CLASSIFY} --pool 30 --folds 3 --search annealing", *OTHER_WEIGHTS, rounds=8),
    "grid": Run(f"{CLASSIFY} --pool 30 --folds 3 --search grid", *OTHER_WEIGHTS, rounds=4),
    "exact": Run(f"{CLASSIFY} --method exact --solver cg --tol 1e-6", *OTHER_WEIGHTS),
    "exact, bounded products": Run(
        f"{CLASSIFY} --hyper @narrow_labels --method exact --solver cg --no-probability --product-error 1e-7",
        "--product-error 2e-7",
        "another product error",
    ),
    "logistic": Run(f"{LIKELY} --method logistic", *OTHER_WEIGHTS),
    "gp": Run(f"{LIKELY} --method gp", *OTHER_WEIGHTS),
    "logistic on a basis": Run(f"{LIKELY} --method logistic --basis-size 40 --certify", *OTHER_WEIGHTS),
    "gp on a basis": Run(f"{LIKELY} --method gp --basis-size 40 --basis greedy", *OTHER_WEIGHTS),
    "gp with neighbours": Run(f"{LIKELY} --method gp --basis-size 20 --neighbours 24", *OTHER_WEIGHTS),
    # Hyperparameters that are found beforehand come to the same bits, and are found again on resuming.
    "gp on a basis, tuned": Run(f"{CLASSIFY} --method gp --basis-size 40", *OTHER_WEIGHTS),
    "predictions": Run(
        "predict @model @test --variance --chunk-rows 50 --cluster none", "--latent", "was started with"
    ),
    "variances by neighbours": Run(
        "predict @narrow_model @test --variance --variance-way neighbours --variance-batch 50 --chunk-rows 50 "
        "--cluster none",
        "--latent",
        "was started with",
    ),
    "sparse predictions": Run(
        "predict @sparse @test --variance --chunk-rows 50 --cluster none", "--latent", "or with other settings"
    ),
    "predictions with neighbours": Run(
        "predict @near @test --variance --chunk-rows 50 --cluster none", "--latent", "or with other settings"
    ),
}

# What differs between two runs to the same bits.
_OF_THE_MOMENT = {"checksum", "created", "out", "timings", "words"}
_OF_THE_MOMENT |= {"entries", "kept_share", "kept_tiles", "kernel_evaluations"}


def bits(store: Path) -> dict[str, Any]:
    """Everything that a store holds, but for times: arrays as they lie on disk, and what its JSON says."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        content = path.read_bytes()
        name = str(path.relative_to(store))
        found[name] = _timeless(json.loads(content)) if path.suffix == ".json" else content
    assert any(isinstance(content, bytes) for content in found.values())
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in _OF_THE_MOMENT}
        return {
            name: _timeless(part)
            for name, part in kept.items()
            if not ("seconds" in name or "memory" in name or "bytes" in name)
        }
    return [_timeless(part) for part in value] if isinstance(value, list) else value
