"""The bits of every command, solver and method, against those on record: `make bits`.

A change of structure leaves them as they are. A change of arithmetic records them anew (`make bits BITS=record`), and
its commit says why. They are of one arithmetic (`tests.targets`), so that any machine comes to them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dkgp.commands.signals import Interruption
from tests.cli.invoke import Shell, document_of, run, run_json
from tests.cli.runs import RUNS

# "compare" or "record"; without it these tests are left out: elsewhere the arithmetic is another.
MODE = os.environ.get("DKGP_BITS")
RECORD = Path(__file__).parent / "bits.json"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MODE is None, reason="run by `make bits`")]

KERNELS = (
    "rbf",
    "matern12",
    "matern32",
    "matern52",
    "rq",
    "spherical[0, 1]",
    "cubic[0, 1]",
    "wendland[0, 1, 2]",
    "rbf + linear",
)
KERNELS += ("periodic", "matern32 * rbf", "constant + white + rbf", "polynomial")
SOLVERS = ("gbcd", "bcdc", "bcdg", "cholesky", "tiled-cholesky", "cg", "pcg", "kcg", "paramcg", "smo", "auto")
SPARSE = ("sd", "sr", "dtc", "fitc", "vfe", "vif", "sggp", "mpgp")
BASES = ("uniform", "pivoted", "variance", "k-centre", "k-means", "entropy", "greedy")
OBJECTIVES = ("bound", "fitc", "vif")
MEANS = ("centred", "constant", "linear")
TRAIN, TUNE, FEW = "train @train --hyper @hyper", "tune @train --subset 100", "--basis-size 20 --cluster none"
CLASSIFY = "classify @three --cluster none"
PREDICT, WITH = "predict @model @test --cluster none", "--variance --chunk-rows 100"


def commands() -> Iterator[tuple[str, str]]:
    """Each command line by a name, with the places of stores in braces and no output."""
    for solver, precision in itertools.product(SOLVERS, ("mixed", "double")):
        yield f"train {solver} {precision}", f"{TRAIN} --solver {solver} --precision {precision} --tol 1e-3"
    for solver, mean in itertools.product(("gbcd", "cholesky", "pcg"), MEANS[1:]):
        yield f"train {solver}, mean {mean}", f"{TRAIN} --solver {solver} --mean {mean}"
    for solver in ("gbcd", "cholesky", "cg", "tiled-cholesky"):
        yield f"train {solver}, known noise", f"train @noisy --hyper @hyper --solver {solver}"
    for paper in ("gbcd", "kcg", "smo"):
        yield f"train {paper} as in the paper", f"{TRAIN} --solver {paper} --as-in-the-paper"
    yield "train with variances", f"{TRAIN} --solver cholesky --with-variances"
    yield "train, tuned", "train @train --tune"
    yield "train, exhaustive", f"{TRAIN} --solver gbcd --exhaustive"
    yield "train, prefitting", f"{TRAIN} --solver gbcd --prefitting --block-size 20"
    for kernel in KERNELS:
        yield f"tune {kernel}", f"{TUNE} --kernel '{kernel}'"
    for mean in MEANS:
        yield f"tune, mean {mean}", f"{TUNE} --mean {mean}"
    yield "tune loo", f"{TUNE} --objective loo"
    for objective in OBJECTIVES:
        yield f"tune {objective}", f"tune @train --objective {objective} --basis-size 20"
    for model in ("linear", "gp", "auto"):
        yield f"tune noise model {model}", f"{TUNE} --noise-model {model}"
    yield "tune Student's t", f"{TUNE} --likelihood student-t"
    yield "tune subsets", f"{TUNE} --subsets 3 --restarts 2 --folds 3"
    yield "tune refine", f"{TUNE} --refine --refine-steps 3"
    yield "tune prior, bounds, fix", f"{TUNE} --bounds gamma.a=0.01:1 --fix noise_variance=0.1"
    yield "tune learnt amplitude", f"{TUNE} --learn-variance"
    for likelihood in ("logit", "probit", "softmax"):
        yield f"tune {likelihood}", f"tune @three --subset 80 --likelihood {likelihood}"
    for method in SPARSE:
        yield f"sparse {method}", f"sparse @train --hyper @hyper --method {method} {FEW}"
    for basis in BASES:
        yield f"sparse basis {basis}", f"sparse @train --hyper @hyper --method fitc --basis {basis} {FEW}"
    for method in ("sd", "dtc", "fitc", "vif"):
        yield f"sparse {method}, known noise", f"sparse @noisy --hyper @hyper --method {method} {FEW}"
    for method in ("sr", "sggp", "mpgp"):
        yield (
            f"sparse {method} as in the paper",
            f"sparse @train --hyper @hyper --method {method} --as-in-the-paper --basis-size 30 --cluster none",
        )
    yield "sparse certified", f"sparse @train --hyper @hyper --method dtc --certify-passes 3 {FEW}"
    for labels, search in itertools.product(("two", "three"), ("shared", "grid", "profile", "annealing", "none")):
        yield (
            f"fixed-size {labels} {search}",
            f"classify @{labels} --cluster none --pool 25 --folds 3 --search {search}",
        )
    for choice in ("k-centre", "uniform", "pivoted", "variance", "k-means", "entropy", "greedy"):
        yield f"fixed-size {choice}", f"{CLASSIFY} --pool 25 --folds 3 --prototypes {choice}"
    for intercept in ("first", "selected", "none"):
        yield f"fixed-size intercept {intercept}", f"{CLASSIFY} --pool 25 --folds 3 --intercept {intercept}"
    for solver in ("cg", "gbcd", "cholesky", "pcg"):
        yield f"exact classifier {solver}", f"{CLASSIFY} --hyper @wide --method exact --solver {solver}"
    for method, labels, link in itertools.product(("logistic", "gp"), ("two", "three"), ("logit", "probit")):
        yield (
            f"{method} {labels} {link}",
            f"classify @{labels} --cluster none --hyper @wide --method {method} --link {link} --multi-class ovr",
        )
    for method, basis in itertools.product(("logistic", "gp"), ("pivoted", "greedy")):
        yield (
            f"{method} on a basis {basis}",
            f"{CLASSIFY} --hyper @wide --method {method} --basis-size 20 --basis {basis}",
        )
    yield "softmax", f"{CLASSIFY} --hyper @wide --method gp --multi-class softmax --basis-size 20"
    yield "balanced", f"{CLASSIFY} --hyper @wide --method logistic --class-weight balanced"
    for method in ("scdp", "omp", "mp", "lars", "lasso"):
        yield f"pursue {method}", f"pursue @train --method {method} --cluster none"
    for cardinality in ("best", "one-standard-error", "3"):
        yield f"pursue {cardinality}", f"pursue @train --cardinality {cardinality} --cluster none"
    for model in ("model", "sparse", "near", "narrow_model"):
        for options in ("", "--variance", "--variance --latent"):
            yield f"predict {model} {options}".strip(), f"predict @{model} @test --cluster none {options}"
    for way in ("cholesky", "iterative"):
        yield f"predict {way}", f"{PREDICT} {WITH} --variance-way {way}"
    yield "predict, basis of each", f"{PREDICT} {WITH} --variance-basis 60"
    yield "predict, halo", f"{PREDICT} {WITH} --variance-way iterative --variance-halo 20"
    for model in ("logistic", "gp", "basis", "gp_near", "few"):
        for options in ("", "--plug-in") if model not in ("logistic", "few") else ("",):
            yield f"predict {model} {options}".strip(), f"predict @{model} @labels --cluster none {options}"
    yield "ingest", "ingest @kinds @out --labels kind"
    yield "ingest with a test set", "ingest @kinds @out --labels kind --test-fraction 0.2 --test-out @out.test"


COMMANDS = dict(commands())

# Numbers that two runs to the same bits need not share.
OF_THE_MOMENT = re.compile(
    "seconds|memory|bytes|timings|created|entries|kept_|evaluations|pid|threads|workers|versions|arithmetic|plan"
)


def left_by(out: Path) -> str:
    """Sixteen digits that stand for all numbers that a run has left, but for times and sizes.

    Arrays count by their values, and documents by their numbers: not by compression, and not by words.
    """
    content: dict[str, Any] = {}
    for path in [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file()):
        if path.name == "zarr.json":
            if json.loads(path.read_text())["node_type"] == "array":
                values = np.asarray(zarr.open_array(path.parent, mode="r")[...])
                text = values.tobytes() if values.dtype.hasobject is False else repr(values.tolist()).encode()
                content[str(path.parent.relative_to(out))] = [
                    str(values.dtype),
                    values.shape,
                    hashlib.sha256(text).hexdigest(),
                ]
        elif path.suffix == ".json" or path == out:
            content[path.name if path != out else ""] = numbers(json.loads(path.read_text()))
    assert content
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def numbers(document: Any) -> Any:
    """The numbers of a document that two runs to the same bits share."""
    if isinstance(document, dict):
        kept = {name: numbers(part) for name, part in document.items() if not OF_THE_MOMENT.search(name)}
        return {name: part for name, part in kept.items() if part not in (None, [], {})}
    if isinstance(document, list):
        return [numbers(part) for part in document]
    return document if isinstance(document, int | float) else None


@pytest.fixture(scope="module")
def recorded() -> Iterator[Callable[[str, str], None]]:
    """Compare a run's digest with the one on record, or record it."""
    known: dict[str, str] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    made: dict[str, str] = {}

    def compare(name: str, value: str) -> None:
        made[name] = value
        if MODE == "compare":
            assert value == known.get(name), f"other bits than on record: {name}"

    yield compare
    if MODE == "record":
        names = {*COMMANDS, *(f"run: {name}" for name in RUNS)}
        kept = {name: value for name, value in {**known, **made}.items() if name in names}
        RECORD.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_bits_are_those_on_record(
    name: str, stores: Mapping[str, Any], recorded: Callable[[str, str], None], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    typed = Shell(tmp_path, stores).typed(COMMANDS[name])
    if str(out) not in typed:
        typed += ["--out", str(out)]
    result = run(*typed, "--json")
    assert result.exit_code in (0, 4), f"{' '.join(typed)}\n{result.stdout}\n{result.stderr}"
    recorded(name, left_by(out))


@pytest.mark.parametrize("name", RUNS)
def test_bits_of_runs_and_of_resumed_ones_are_those_on_record(
    name: str,
    stores: Mapping[str, Any],
    recorded: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, out, looks = RUNS[name], tmp_path / "out", iter(range(1, 10**9))
    words = kind.typed(stores, out)  # makes the stores that it names, which nothing interrupts
    with monkeypatch.context() as patch:
        patch.setattr(Interruption, "__call__", lambda _: next(looks) >= (4 if kind.rounds > 1 else 2))
        document_of(run(*words), 130)
    run_json(*kind.typed(stores, out), "--resume")
    recorded(f"run: {name}", left_by(out))
