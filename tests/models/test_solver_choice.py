"""The factor for many right-hand sides: that of `auto`, within what it may take."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dkgp.data import memory_dataset
from dkgp.kernels import SquaredExponential, White
from dkgp.models import solver_choice
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import factor_for, probe_of
from dkgp.solvers import FactorPreconditioning

KERNEL, NOISE = SquaredExponential((3.0, 3.0)), 0.05


@pytest.fixture
def dataset(rng: np.random.Generator):
    return memory_dataset(rng.standard_normal((400, 2)), rng.standard_normal(400))


def chosen(monkeypatch: pytest.MonkeyPatch, choice: SimpleNamespace) -> list[dict]:
    asked: list[dict] = []

    def choose(kernel, noise_variance, inputs, n, t, **options):
        asked.append({"kernel": kernel, "noise": noise_variance, "inputs": inputs, "n": n, "t": t, **options})
        return choice

    monkeypatch.setattr(solver_choice, "choose_solver", choose)
    return asked


PCG = SimpleNamespace(solver="pcg", options={"halo": 0, "rank": 77})
OTHER = SimpleNamespace(solver="gbcd", options={})


def test_it_is_the_one_that_auto_takes(dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = chosen(monkeypatch, PCG)
    found = factor_for(dataset, KERNEL + White(0.2), Noise(NOISE), 9, tolerance=0.01, memory_bytes=2**20, seed=3)
    assert found == FactorPreconditioning(0, rank=77, memory_bytes=2**20, seed=3)
    (question,) = asked
    # White noise is noise, and what is probed are samples of the data set, as they are.
    assert (question["kernel"], question["noise"]) == (KERNEL, pytest.approx(0.25))
    assert (question["n"], question["t"], question["tolerance"], question["memory_bytes"]) == (400, 9, 0.01, 2**20)
    rows = {tuple(row) for row in dataset.inputs(0, 400).tolist()}
    assert rows.issuperset(map(tuple, question["inputs"].tolist()))


def test_where_auto_takes_no_factor_its_own_sizes_stand(dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, OTHER)
    assert factor_for(dataset, KERNEL, Noise(NOISE), 9, seed=3) == FactorPreconditioning(seed=3)


def test_a_probe_counts_what_is_solved_beside_the_targets(dataset) -> None:
    assert probe_of(Problem(dataset, KERNEL, Noise(NOISE))).p == 1
    assert probe_of(Problem.of(dataset, KERNEL, Noise(NOISE), "linear")).p == 1 + 1 + dataset.n_features
