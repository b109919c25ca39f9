"""`dkgp bench gallery`: its short form, what it measures differences by, and, as evidence, all ten examples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, UsageError
from dkgp_benchmarks.gallery.example import Part, differences
from dkgp_benchmarks.gallery.regression import SequenceKernel
from dkgp_benchmarks.gallery.run import EXAMPLES, BenchGalleryJob, read_months, run_bench_gallery

# Largest differences that are taken for the same: of means (of the targets' deviation), deviations and probabilities.
SAME = {"mean": 1e-3, "std": 1e-2, "probability": 1e-3}


def test_quick_examples_are_the_same_and_drawn(tmp_path: Path) -> None:
    names = ("noise-level", "sequences", "equal-probabilities")
    out = tmp_path / "gallery.json"
    job = BenchGalleryJob(names, str(tmp_path / "pictures"), out=str(out))
    document = run_bench_gallery(job, SilentReporter())
    assert [row["example"] for row in document["rows"]] == list(names)
    for row in document["rows"]:
        assert all(row[kind] is None or row[kind] < bound for kind, bound in SAME.items())
        assert row["likelihood"] < 1e-5
    assert [row["mean"] is None for row in document["rows"]] == [False, False, True]
    assert document["figures"]["largest_std"] == max(row["std"] for row in document["rows"] if row["std"] is not None)
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert [path.stem for path in pictures] == sorted(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert json.loads(out.read_text())["rows"] == document["rows"]


@pytest.mark.long
@pytest.mark.slow
def test_all_examples_are_the_same() -> None:
    document = run_bench_gallery(BenchGalleryJob(), SilentReporter())
    assert [row["example"] for row in document["rows"]] == list(EXAMPLES)
    assert len(EXAMPLES) == 10
    for row in document["rows"]:
        assert all(row[kind] is None or row[kind] < bound for kind, bound in SAME.items()), row
        assert row["theta"] < 0.1
        assert row["likelihood"] < 1e-4


def test_differences_are_seen(rng: np.random.Generator) -> None:
    mean, std = rng.normal(size=20), rng.uniform(0.5, 1.0, 20)
    std[3] = 1e-9
    theirs = Part("one", mean, std, rng.uniform(size=(20, 2)), np.array([0.1, 2.0]), -3.0)
    same = differences([theirs], [theirs], 2.0)
    assert same == {"mean": 0.0, "std": 0.0, "probability": 0.0, "theta": 0.0, "likelihood": 0.0}
    mine = replace(theirs, mean=mean + 0.02, std=std.copy(), theta=np.array([0.1, 2.5]), likelihood=-3.25)
    assert mine.std is not None
    mine.std[7] *= 1.01
    mine.std[3] = 2e-9  # twice, of next to nothing
    told = differences([theirs, mine], [theirs, theirs], 2.0)
    assert told["mean"] == pytest.approx(0.01)
    assert told["std"] == pytest.approx(0.01)
    assert (told["theta"], told["likelihood"], told["probability"]) == (0.5, 0.25, 0.0)
    assert differences([Part("prior", mean)], [Part("prior", mean)], 1.0)["theta"] is None


def test_a_kernel_of_strings_has_the_gradient_that_it_says() -> None:
    kernel, words, step = SequenceKernel(0.3), ["AGCT", "TAA", "C"], 1e-6
    matrix, gradient = kernel(words, eval_gradient=True)
    assert matrix[0, 1] == 3 * 1.0 + 9 * 0.3  # A-A, A-A, T-T of twelve pairs
    np.testing.assert_array_equal(kernel.diag(words), np.diag(matrix))
    other = kernel.clone_with_theta(kernel.theta + step)(words)
    np.testing.assert_allclose(gradient[:, :, 0], (other - matrix) / step, rtol=1e-5)


def test_measurements_become_monthly_means(tmp_path: Path) -> None:
    path = tmp_path / "co2.csv"
    path.write_text("date,co2\n19580329,316.1\n19580405,317.0\n19580412,318.0\n19580419,\n19580615,315.0\n")
    years, ppm = read_months(str(path))
    np.testing.assert_allclose(years, [1958 + 3 / 12, 1958 + 4 / 12, 1958 + 6 / 12])
    np.testing.assert_allclose(ppm, [316.1, 317.5, 315.0])
    path.write_text("when,ppm\n1,2\n")
    with pytest.raises(InputError, match="no CSV file with the columns date and co2"):
        read_months(str(path))
    with pytest.raises(UsageError, match="no example 'moons'; --example takes noisy-targets"):
        run_bench_gallery(BenchGalleryJob(("moons",)), SilentReporter())
