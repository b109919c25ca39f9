"""The samples that tuning looks at: random subsets, disjoint where the data suffice, and rows held out of them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.memory import MemoryArray
from dkgp.errors import InputError

__all__ = [
    "ArraySubsets",
    "StoredSubsets",
    "SubsetPlan",
    "SubsetSource",
    "TunedDataset",
    "as_columns",
    "draw_subset",
    "plan_subsets",
    "require_finite",
]

FloatArray: TypeAlias = NDArray[np.float64]
IndexArray: TypeAlias = NDArray[np.int64]


class TunedDataset(Protocol):
    """A dataset as `tune_dataset` needs it: sizes, names, and rows on the standardised scale."""

    @property
    def n_samples(self) -> int:
        """Number of samples n."""

    @property
    def chunk_rows(self) -> int:
        """Rows to read at a time."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features kept."""

    def input_rows(self, indices: Any, /) -> FloatArray:
        """Rows of the standardised inputs: (len(indices), d)."""

    def targets(self, start: int, stop: int, /) -> FloatArray:
        """Standardised targets of the samples from `start` up to `stop`: (stop - start, p)."""


@dataclass(frozen=True)
class SubsetPlan:
    """The plan by which samples are drawn; a few numbers from which each process draws the same ones.

    Attributes
    ----------
    n_samples : int
        Of the data.
    size : int
        Samples of each subset.
    count : int
        Number of subsets.
    seed : int
    holdout : int
        Samples held out of all subsets.
    """

    n_samples: int
    size: int
    count: int = 1
    seed: int = 0
    holdout: int = 0

    @property
    def overlaps(self) -> bool:
        """True if the subsets have to share samples."""
        return self.count * self.size > self.n_samples - (0 if self._holdout_comes_after else self.holdout)

    @property
    def _holdout_comes_after(self) -> bool:
        """True if enough samples are left over by the subsets."""
        return min(self.count * self.size, self.n_samples) + self.holdout <= self.n_samples

    def subset(self, index: int) -> IndexArray:
        """Sorted indices of a subset without repeats: (size,) int64."""
        if self._holdout_comes_after:
            return _draw(self.n_samples, self.size, self.count, self.seed)[index]
        rest = np.delete(np.arange(self.n_samples), self.held_out())
        return np.asarray(rest[_draw(len(rest), self.size, self.count, self.seed)[index]])

    def held_out(self) -> IndexArray:
        """Sorted indices of the samples in no subset: (holdout,) int64."""
        generator = np.random.default_rng([self.seed, 2])
        if not self._holdout_comes_after:
            return np.sort(generator.choice(self.n_samples, size=self.holdout, replace=False))
        drawn = np.concatenate(_draw(self.n_samples, self.size, self.count, self.seed))
        # As many more as the subsets hold: so many are left when theirs are taken out.
        candidates = generator.choice(self.n_samples, size=self.holdout + len(np.unique(drawn)), replace=False)
        return np.sort(candidates[~np.isin(candidates, drawn)][: self.holdout])


def plan_subsets(
    n_samples: int, subset: int, *, subsets: int = 1, seed: int = 0, holdout: float | None = None
) -> SubsetPlan:
    """Plan the draw.

    Parameters
    ----------
    n_samples : int
        Of the data.
    subset : int
        Samples of each subset; all where there are fewer.
    subsets : int
        How many.
    seed : int
    holdout : float, optional
        Samples held out, as a fraction of a subset. They are taken from those that no subset needs; where the data do
        not suffice the subsets get smaller.

    Raises
    ------
    InputError
        Numbers out of range, or several subsets that would all be the whole of the data.
    """
    if subset < 2:
        raise InputError(f"subset must be at least 2; got {subset}")
    if subsets < 1:
        raise InputError(f"subsets must be at least 1; got {subsets}")
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


def draw_subset(n_samples: int, subset: int, seed: int) -> IndexArray:
    """Sorted indices of one random subset without repeats: (min(n, subset),) int64; the same for the same seed."""
    return plan_subsets(n_samples, subset, seed=seed).subset(0)


def _draw(n_samples: int, size: int, count: int, seed: int) -> list[IndexArray]:
    if size >= n_samples:
        return [np.arange(n_samples)] * count
    generator = np.random.default_rng(seed)
    found: list[IndexArray] = []
    while len(found) < count:  # as many disjoint ones as there are, then others
        together = min(count - len(found), n_samples // size)
        drawn = generator.choice(n_samples, size=together * size, replace=False)
        found += [np.sort(part) for part in drawn.reshape(together, size)]
    return found


class SubsetSource(Protocol):
    """Rows of subsets, standardised, readable wherever tasks run. Must pickle to something small."""

    @property
    def n_subsets(self) -> int:
        """Number of subsets."""

    def rows(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Inputs (m, d) and targets (m, p) of a subset."""

    def held_out(self) -> tuple[FloatArray, FloatArray]:
        """Inputs (m, d) and targets (m, p) of the rows in no subset."""


@dataclass(frozen=True)
class StoredSubsets:
    """Subsets of a dataset that each process reads for itself."""

    dataset: TunedDataset
    plan: SubsetPlan

    @property
    def n_subsets(self) -> int:
        """Number of subsets."""
        return self.plan.count

    def rows(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Inputs (m, d) and targets (m, p) of a subset."""
        return self._read(self.plan.subset(index))

    def held_out(self) -> tuple[FloatArray, FloatArray]:
        """Inputs (m, d) and targets (m, p) of the rows in no subset."""
        return self._read(self.plan.held_out())

    def _read(self, indices: IndexArray) -> tuple[FloatArray, FloatArray]:
        dataset = self.dataset
        blocks = []
        for start in range(0, dataset.n_samples, dataset.chunk_rows):
            stop = min(start + dataset.chunk_rows, dataset.n_samples)
            first, last = np.searchsorted(indices, [start, stop])
            if first < last:
                blocks.append(dataset.targets(start, stop)[indices[first:last] - start])
        return dataset.input_rows(indices), as_columns(np.concatenate(blocks))


@dataclass(frozen=True)
class ArraySubsets:
    """Subsets of arrays in this process; tasks elsewhere cannot read them."""

    parts: tuple[tuple[MemoryArray, MemoryArray], ...]
    rest: tuple[MemoryArray, MemoryArray] | None

    @classmethod
    def of(cls, inputs: FloatArray, targets: FloatArray, plan: SubsetPlan) -> ArraySubsets:
        """Take the rows of `inputs` (n, d) and `targets` (n, p) that the plan draws."""
        drawn = [plan.subset(index) for index in range(plan.count)]
        parts = []
        for indices in (*drawn, plan.held_out()) if plan.holdout else drawn:
            x, y = inputs[indices], targets[indices]
            require_finite("inputs", x)
            require_finite("targets", y)
            parts.append((MemoryArray(x), MemoryArray(y)))
        return cls(tuple(parts[: plan.count]), parts[-1] if plan.holdout else None)

    @property
    def n_subsets(self) -> int:
        """Number of subsets."""
        return len(self.parts)

    def rows(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Inputs (m, d) and targets (m, p) of a subset."""
        return _arrays(self.parts[index])

    def held_out(self) -> tuple[FloatArray, FloatArray]:
        """Inputs (m, d) and targets (m, p) of the rows in no subset."""
        assert self.rest is not None
        return _arrays(self.rest)


def _arrays(pair: tuple[MemoryArray, MemoryArray]) -> tuple[FloatArray, FloatArray]:
    inputs, targets = pair
    return inputs.read(0, inputs.shape[0]), targets.read(0, inputs.shape[0])


def as_columns(targets: FloatArray) -> FloatArray:
    """Targets of shape (n,) or (n, p) as (n, p); `InputError` for another shape."""
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[1] == 0):
        raise InputError(f"targets must be of shape (n,) or (n, p); got {targets.shape}")
    return targets[:, None] if targets.ndim == 1 else targets


def require_finite(name: str, values: FloatArray) -> None:
    """Refuse rows with NaN or infinity; `InputError` names the first."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise InputError(
            f"{name} hold {int(bad.sum())} values that are NaN or infinite, the first in the subset's row {row}, "
            f"column {column}; expected finite numbers. Remove or fill those rows"
        )
