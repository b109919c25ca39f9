"""The samples that tuning uses: random subsets, disjoint where the data suffice, and rows that none of them has."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.models.noise import SAME_NOISE, Noise


@dataclass(frozen=True)
class SubsetPlan:
    """A plan of draws: a few numbers from which each process draws the same samples.

    From `n_samples`, `count` subsets of `size` samples each are drawn; `holdout` samples are in no subset.
    """

    n_samples: int
    size: int
    count: int = 1
    seed: int = 0
    holdout: int = 0

    @property
    def overlaps(self) -> bool:
        """True if the subsets must share samples."""
        return self.count * self.size > self.n_samples - (0 if self._holdout_comes_after else self.holdout)

    @property
    def _holdout_comes_after(self) -> bool:
        """True if the subsets leave enough samples to hold out."""
        return min(self.count * self.size, self.n_samples) + self.holdout <= self.n_samples

    def subset(self, index: int) -> IntArray:
        """Return sorted indices of a subset without repeats: (size,) int64."""
        if self._holdout_comes_after:
            return _draw(self.n_samples, self.size, self.count, self.seed)[index]
        rest = np.delete(np.arange(self.n_samples), self.held_out())
        return np.asarray(rest[_draw(len(rest), self.size, self.count, self.seed)[index]])

    def held_out(self) -> IntArray:
        """Return sorted indices of the samples in no subset: (holdout,) int64."""
        generator = np.random.default_rng([self.seed, 2])
        if not self._holdout_comes_after:
            return np.sort(generator.choice(self.n_samples, size=self.holdout, replace=False))
        drawn = np.concatenate(_draw(self.n_samples, self.size, self.count, self.seed))
        # As many more as the subsets hold: enough remain without theirs.
        candidates = generator.choice(self.n_samples, size=self.holdout + len(np.unique(drawn)), replace=False)
        return np.sort(candidates[~np.isin(candidates, drawn)][: self.holdout])


def plan_subsets(
    n_samples: int, subset: int, *, subsets: int = 1, seed: int = 0, holdout: float | None = None
) -> SubsetPlan:
    """Plan the draw.

    A subset holds all samples if there are fewer. `holdout` is the fraction of a subset that is held out. These samples
    come from those that no subset needs; if the data do not suffice, the subsets get smaller.

    Raises `InputError`: numbers out of range, or several subsets that would all be the whole data set.
    """
    try:
        subset, subsets = operator.index(subset), operator.index(subsets)
    except TypeError:
        raise InputError(f"subset and subsets must be whole numbers; got {subset!r} and {subsets!r}") from None
    if subset < 2:
        raise InputError(f"`subset` must be at least 2; got {subset}")
    if subsets < 1:
        raise InputError(f"`subsets` must be at least 1; got {subsets}")
    if n_samples < 2:
        raise InputError(f"tuning needs at least 2 samples; got {n_samples}")
    size = min(subset, n_samples)
    held = 0
    if holdout is not None:
        if not 0.0 < holdout < 1.0:
            raise InputError(f"holdout must be a fraction between 0 and 1; got {holdout!r}")
        held = max(1, round(holdout * size))
        size = min(size, n_samples - held)
        if size < 2:
            raise InputError(f"{n_samples} samples are too few to hold {held} of them out and tune on the rest")
    if subsets > 1 and size >= n_samples - held:
        raise InputError(
            f"{subsets} subsets of {subset} samples would all be the same {n_samples - held} samples; take one subset, "
            "or smaller ones"
        )
    return SubsetPlan(n_samples, size, subsets, seed, held)


def draw_subset(n_samples: int, subset: int, seed: int) -> IntArray:
    """Return sorted indices of a random subset without repeats: (min(n, subset),) int64; a seed fixes them."""
    return plan_subsets(n_samples, subset, seed=seed).subset(0)


def _draw(n_samples: int, size: int, count: int, seed: int) -> list[IntArray]:
    if size >= n_samples:
        return [np.arange(n_samples)] * count
    generator = np.random.default_rng(seed)
    draws: list[IntArray] = []
    while len(draws) < count:  # as many disjoint ones as there are, then others
        together = min(count - len(draws), n_samples // size)
        drawn = generator.choice(n_samples, size=together * size, replace=False)
        draws += [np.sort(part) for part in drawn.reshape(together, size)]
    return draws


def read_rows(dataset: Dataset, indices: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return inputs (m, d + c) and targets (m, p) of sorted rows, standardised; `InputError` for NaN or infinity."""
    blocks = []
    for start in range(0, dataset.n_samples, dataset.chunk_rows):
        stop = min(start + dataset.chunk_rows, dataset.n_samples)
        first, last = np.searchsorted(indices, [start, stop])
        if first < last:
            blocks.append(dataset.targets(start, stop)[indices[first:last] - start])
    inputs, targets = dataset.rows_at(indices), np.concatenate(blocks)
    require_finite("inputs", inputs, "the subset's row")
    require_finite("targets", targets, "the subset's row")
    return inputs, targets


@dataclass(frozen=True)
class Subsets:
    """Rows of a data set's subsets, standardised; each process reads them for itself."""

    dataset: Dataset
    plan: SubsetPlan
    # Noise of each subset's samples and, last, of the rows in no subset; by default that of the data set.
    noises: tuple[Noise, ...] | None = field(default=None, kw_only=True)

    @classmethod
    def with_noise(cls, dataset: Dataset, plan: SubsetPlan, noise: Noise) -> Subsets:
        """Return the subsets that a plan draws from samples with this noise."""
        drawn = [*map(plan.subset, range(plan.count)), plan.held_out()]
        return cls(dataset, plan, noises=tuple(noise.rows(indices) for indices in drawn))

    def rows(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Return rows (m, d + c) and targets (m, p) of a subset; `InputError` for NaN or infinity."""
        return read_rows(self.dataset, self.plan.subset(index))

    def held_out(self) -> tuple[FloatArray, FloatArray]:
        """Return inputs (m, d) and targets (m, p) of the rows in no subset; `InputError` for NaN or infinity."""
        return read_rows(self.dataset, self.plan.held_out())

    def weights(self, index: int) -> FloatArray | None:
        """Return weights of a subset's samples, (m,); None if all count alike, as in a regression."""
        return None

    def noise(self, index: int) -> Noise:
        """Return the noise of a subset's samples, for an s2 of 1; of index -1 that of the rows in no subset."""
        if self.noises is not None:
            return self.noises[index]
        return SAME_NOISE.beside(self.dataset).rows(self.plan.held_out() if index < 0 else self.plan.subset(index))


@dataclass(frozen=True)
class LabelledSubsets(Subsets):
    """Rows of subsets whose labels are in memory."""

    indices: tuple[IntArray, ...]  # (m,): sorted samples of each subset
    labels: tuple[FloatArray, ...]  # (m, t): signs, or ones and zeros, as the likelihood takes them
    sample_weights: tuple[FloatArray, ...] | None  # (m,)
    held_labels: FloatArray  # (holdout, t): of the rows in no subset

    def rows(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Return inputs (m, d) and labels (m, t) of a subset; `InputError` for NaN or infinity."""
        return self._inputs(self.indices[index]), self.labels[index]

    def held_out(self) -> tuple[FloatArray, FloatArray]:
        """Return inputs (m, d) and labels (m, t) of the rows in no subset; `InputError` for NaN or infinity."""
        return self._inputs(self.plan.held_out()), self.held_labels

    def noise(self, index: int) -> Noise:
        """Return the noise of samples that have none beside s2: labels have none."""
        return SAME_NOISE

    def weights(self, index: int) -> FloatArray | None:
        """Return weights of a subset's samples, (m,)."""
        return None if self.sample_weights is None else self.sample_weights[index]

    def _inputs(self, indices: IntArray) -> FloatArray:
        inputs = self.dataset.input_rows(indices)
        require_finite("inputs", inputs, "the subset's row")
        return inputs


def require_finite(name: str, values: FloatArray, row_of: str) -> None:
    """Refuse rows with NaN or infinity; `InputError` names the first."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise InputError(
            f"{name} hold {int(bad.sum())} values that are NaN or infinite, the first in {row_of} {row}, "
            f"column {column}; expected finite numbers. Remove or fill those rows"
        )
