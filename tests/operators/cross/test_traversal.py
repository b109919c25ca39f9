"""Farthest-first traversals by candidates: the samples that looking at all of them for every prototype chooses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dkgp.kernels import Features, Kernel, Linear, SquaredExponential, TileEvaluator
from dkgp.operators.cross import kernel as cross_kernel

RNG = np.random.default_rng(3)


def one_by_one(evaluator: TileEvaluator, parts: list[Features], prior: np.ndarray, size: int, place: int) -> list[int]:
    """All samples looked at for every prototype."""
    owner = np.repeat(np.arange(len(parts)), [part.n for part in parts])
    within = np.concatenate([np.arange(part.n) for part in parts])
    nearest, places = np.full(len(prior), np.inf), [place]
    while len(places) < min(size, len(prior)):
        point = parts[owner[place]].take(within[[place]])
        column = np.concatenate([np.array(evaluator.tile(part, point))[:, 0] for part in parts])
        nearest = np.minimum(nearest, prior + prior[place] - 2.0 * column)
        nearest[place] = 0.0
        place = int(np.argmax(nearest))
        if not nearest[place] > cross_kernel.LEAST_DISTANCE * prior[place]:
            break
        places.append(place)
    return places


INPUTS = {
    "uniform": RNG.uniform(0.0, 1.0, (300, 2)),
    "normal": RNG.standard_normal((301, 30)),
    "grid": np.stack(np.meshgrid(np.arange(17.0), np.arange(18.0)), axis=-1).reshape(-1, 2),
    "duplicates": np.repeat(RNG.integers(0, 9, (50, 3)).astype(float), 6, axis=0),
    "clusters": RNG.integers(0, 3, (300, 2)) * 100.0 + 1e-3 * RNG.standard_normal((300, 2)),
    "far out": np.concatenate([RNG.standard_normal((299, 2)), [[1e200, -1e200]]]),
    "same": np.ones((300, 2)),
}


@pytest.mark.covering
@pytest.mark.parametrize("few", [1, 40])
@pytest.mark.parametrize("kernel", [Linear, SquaredExponential], ids=["linear", "rbf"])
@pytest.mark.parametrize("name", INPUTS)
def test_the_same_samples_are_chosen(
    name: str, kernel: Callable[[tuple[float, ...]], Kernel], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_kernel, "LEAST_CANDIDATES", few)
    monkeypatch.setattr(cross_kernel, "CANDIDATES_SHARE", 100)
    monkeypatch.setattr(cross_kernel, "POINTS_AT_ONCE", 5)
    monkeypatch.setattr(cross_kernel, "ROWS_AT_ONCE", 64)
    inputs = INPUTS[name]
    made = kernel((0.7,) * inputs.shape[1])
    evaluator = TileEvaluator(made, "double")
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [evaluator.prepare(part) for part in np.split(inputs, [64, 129])]
        prior = np.asarray(made.diagonal(inputs), dtype=np.float64)
        for size, place in ((1, 5), (40, 0), (len(inputs), 200)):
            expected = one_by_one(evaluator, parts, prior, size, place)
            assert cross_kernel._traverse(evaluator, parts, prior, size, place) == expected
    assert (len(expected) == 1) == (name == "same" or (name == "far out" and kernel is Linear))


def test_few_distances_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a third of the n entries a prototype come in single columns."""
    kernel = Linear((1.0,) * 3)
    evaluator = TileEvaluator(kernel, "double")
    inputs = RNG.standard_normal((20_000, 3))
    features, entries = evaluator.prepare(inputs), [0]
    plain = TileEvaluator.tile

    def counted(self: TileEvaluator, rows: Features, columns: Features) -> np.ndarray:
        entries[0] += rows.n if columns.n == 1 else 0
        return plain(self, rows, columns)

    monkeypatch.setattr(TileEvaluator, "tile", counted)
    cross_kernel._traverse(evaluator, [features], np.asarray(kernel.diagonal(inputs)), 300, 0)
    assert 0 < entries[0] < 0.33 * 300 * 20_000
