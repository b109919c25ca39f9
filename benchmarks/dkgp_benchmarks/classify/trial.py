"""One split as every method gets it, what a method is, and what the rivals' searches share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from dkgp.models.classification.labels import Labels
from dkgp_benchmarks.classify.problems import Samples, Split

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Rows that the median distance is taken of.
DISTANCE_ROWS = 500


@dataclass(frozen=True)
class Trial:
    """Samples to train and to test on, inputs standardised by the training samples: (n, d), (n,), (t, d), (t,).

    Attributes
    ----------
    raw
        Training and test inputs before that.
    """

    inputs: FloatArray
    codes: IntArray
    test_inputs: FloatArray
    test_codes: IntArray
    seed: int
    raw: tuple[FloatArray, FloatArray]

    @property
    def n(self) -> int:
        """Training samples."""
        return len(self.codes)

    @property
    def labels(self) -> Labels:
        """Classes as dkgp's models take them."""
        return Labels(("-1", "+1"), self.codes)

    @property
    def signs(self) -> FloatArray:
        """Classes as -1 and +1: (n,)."""
        return np.where(self.codes == 1, 1.0, -1.0)

    def subset(self, size: int) -> Trial:
        """The first samples in a random order, to tune on; all of them where there are not more."""
        if size >= self.n:
            return self
        rows = np.random.default_rng([self.seed, 7]).permutation(self.n)[:size]
        return Trial(
            self.inputs[rows],
            self.codes[rows],
            self.test_inputs,
            self.test_codes,
            self.seed,
            (self.raw[0][rows], self.raw[1]),
        )


class Classifier(Protocol):
    """A trained classifier; one that has probabilities has `probable(inputs)` too, of class 1: (r,)."""

    @property
    def size(self) -> int | None:
        """Prototypes or support vectors; None where the model is not sparse."""

    def decide(self, inputs: FloatArray) -> FloatArray:
        """Decisions (r,) at standardised inputs (r, d); class 1 where they are not negative."""


class Method(Protocol):
    """A way to train a classifier: hyperparameters first, then with them."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Find hyperparameters, in plain JSON types."""

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train with them."""


def trial_of(samples: Samples, split: Split, seed: int) -> Trial:
    """Take the rows of a split; features that are constant on the training samples keep their scale, centred."""
    train, test = samples.inputs[split.train], samples.inputs[split.test]
    mean, std = train.mean(axis=0), train.std(axis=0)
    std = np.where(std > 0.0, std, 1.0)
    split_seed = seed + split.index
    codes = samples.codes[split.train], samples.codes[split.test]
    return Trial((train - mean) / std, codes[0], (test - mean) / std, codes[1], split_seed, (train, test))


def median_gamma(inputs: FloatArray, seed: int) -> float:
    """One over the median squared distance between samples that differ."""
    few = np.random.default_rng([seed, 13]).permutation(len(inputs))[:DISTANCE_ROWS]
    squared = pdist(inputs[few], "sqeuclidean")
    squared = squared[squared > 0.0]
    return 1.0 / float(np.median(squared)) if len(squared) else 1.0


def refined(
    evaluate: Callable[[float], float], centre: float, reach: tuple[int, int], step: float, halvings: int
) -> float:
    """Least of a function of one number: on a grid of so many steps about the centre, then by halved steps."""
    values: dict[float, float] = {}

    def least() -> float:
        return min(values, key=lambda at: (values[at], at))

    def look(at: float) -> None:
        if at not in values:
            values[at] = evaluate(at)

    for position in range(-reach[0], reach[1] + 1):
        look(centre + position * step)
    for _ in range(halvings):
        step *= 0.5
        best = least()
        look(best - step)
        look(best + step)
    return least()
