"""`dkgp bench prototypes`: a row for each kind, errors against dense algebra, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, UsageError
from dkgp.kernels import kernel_from_json
from dkgp.models.classification.prototypes import PROTOTYPES
from dkgp_benchmarks.classify.problems import splits
from dkgp_benchmarks.pursuit.prototypes import KINDS, UNSCALED, BenchPrototypesJob, run_bench_prototypes
from dkgp_benchmarks.pursuit.tuned import problem_samples


@pytest.mark.long
def test_each_kind_has_its_row_and_the_record_is_written(tmp_path: File) -> None:
    out = tmp_path / "prototypes.json"
    document = run_bench_prototypes(BenchPrototypesJob(n=300, pool=50, splits=2, out=str(out)), SilentReporter())
    assert [row["prototypes"] for row in document["rows"]] == list(KINDS) == [*PROTOTYPES, UNSCALED]
    for row in document["rows"]:
        assert 1.5 < row["pursued 20"] < 15.0
        assert row["seconds"] >= 0.0
        assert row["all 20_std"] >= 0.0
    assert set(document["figures"].values()) <= set(KINDS)
    assert json.loads(out.read_text())["rows"] == document["rows"]


def test_all_of_uniform_prototypes_is_the_dense_solution() -> None:
    job = BenchPrototypesJob(n=200, pool=50, splits=1, methods=("uniform", "k-centre", UNSCALED))
    document = run_bench_prototypes(job, SilentReporter())
    row, scaled, unscaled = document["rows"]
    # Another distance, other prototypes.
    assert scaled["all 20"] != unscaled["all 20"]
    problem, samples = problem_samples("made-ringnorm", None, 0, 200)
    (split,) = splits(problem, samples, [0], 0)
    X, test = samples.inputs[split.train], samples.inputs[split.test]
    y = np.where(samples.codes[split.train] == 1, 1.0, -1.0)
    X, test = ((some - X.mean(axis=0)) / X.std(axis=0) for some in (X, test))
    Z = X[np.random.default_rng(0).permutation(200)[:20]]
    parameters: dict[str, Any] = document["settings"]["parameters"]["made-ringnorm"]
    kernel = kernel_from_json(parameters["kernel"])
    columns = np.column_stack([kernel(X, Z), np.ones(200)])
    ridge = np.pad(parameters["noise_variance"] * kernel(Z, Z), (0, 1))
    solved = np.linalg.solve(columns.T @ columns + ridge, columns.T @ y)
    wrong = (kernel(test, Z) @ solved[:-1] + solved[-1] >= 0.0) != (samples.codes[split.test] == 1)
    assert row["all 20"] == pytest.approx(100.0 * np.mean(wrong), abs=0.02)


def test_problems_are_those_that_are_here(tmp_path: File) -> None:
    assert BenchPrototypesJob().chosen_problems == ("made-ringnorm",)
    (tmp_path / "adult.npz").touch()
    assert BenchPrototypesJob(data=str(tmp_path)).chosen_problems == ("adult",)
    assert BenchPrototypesJob(data=str(tmp_path), problems=("banana",)).chosen_problems == ("banana",)


def test_what_makes_no_sense_is_refused() -> None:
    for wrong, words in (
        ({"n": 3}, "`n` must be at least 20; got 3"),
        ({"pool": 1}, "`pool` must be at least 10; got 1"),
        ({"splits": 0}, "`splits` must be at least 1; got 0"),
        ({"methods": ("best",)}, "unknown prototypes 'best'; there are k-centre"),
    ):
        with pytest.raises(InputError, match=words):
            run_bench_prototypes(BenchPrototypesJob(**wrong), SilentReporter())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown problem 'iris'"):
        run_bench_prototypes(BenchPrototypesJob(problems=("iris",)), SilentReporter())
