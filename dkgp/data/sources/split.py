"""Test samples, split off: drawn at random, the same share of every class or not, or as a mask says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.stores.dataset_writer import MINIMUM_TRAINING_SAMPLES
from dkgp.data.types import BoolArray, FloatArray, quoted
from dkgp.errors import InputError, UsageError

# Of n samples, a fraction and a seed.
Draw: TypeAlias = Callable[[int, float, int], BoolArray]


@dataclass(frozen=True)
class Split:
    """The test samples to split off: a share drawn at random, or those of a mask, a column's name or an array.

    `stratify` says that the draw takes the same share of every class; by default it does where there are labels.
    """

    fraction: float | None = None
    marked: str | NDArray[np.bool_] | None = None
    stratify: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fraction is not None and self.marked is not None:
            raise UsageError("Got both a test fraction and a test mask; give one of them.")

    def __bool__(self) -> bool:
        return self.fraction is not None or self.marked is not None

    @property
    def column(self) -> str | None:
        """The column that holds the mask, if one does."""
        return self.marked if isinstance(self.marked, str) else None

    def mask(self, n_samples: int, column: BoolArray | None, stratified: Draw | None) -> BoolArray | None:
        """The mask of the test samples, (n,); None where there is no split.

        `column` is the mask that the source holds; `stratified` draws by classes, where there are labels. `InputError`
        where there are too few samples for the split, or a mask does not fit them.
        """
        if self.fraction is not None:
            draw = random_mask if stratified is None or self.stratify is False else stratified
            mask = draw(n_samples, self.fraction, self.seed)
        elif self.column is not None:
            assert column is not None
            mask = column
        elif self.marked is not None:
            values = np.asarray(self.marked)
            if values.shape != (n_samples,):
                raise InputError(f"The test mask has shape {values.shape}; expected ({n_samples},).")
            mask = mask_from_column(values.astype(np.float64), "test_mask")
        else:
            return None
        check_split(mask)
        return mask


def random_mask(n_samples: int, test_fraction: float, seed: int) -> BoolArray:
    """A random test mask, shape (n,), with round(n test_fraction) test samples, but at least one.

    It depends on n, the fraction and the seed alone, not on how the samples are read or stored.
    """
    _check_draw(test_fraction, seed)
    n_test = max(1, round(n_samples * test_fraction))
    mask = np.zeros(n_samples, dtype=bool)
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(3, 0)))
    if n_test < n_samples:
        mask[generator.choice(n_samples, n_test, replace=False, shuffle=False)] = True
    else:
        mask[:] = True
    return mask


def stratified_mask(
    codes: NDArray[np.integer[Any]], classes: Sequence[str], test_fraction: float, seed: int
) -> BoolArray:
    """A random test mask, shape (n,), that takes the same share of every class.

    Of round(n test_fraction) test samples each class has its share, rounded down; those left over go to the largest
    remainders. Every class that has samples keeps at least one for training. The mask depends on the labels, the
    fraction and the seed alone.

    Raises `InputError` where there is no class of two samples, of which one could be taken.
    """
    _check_draw(test_fraction, seed)
    counts = np.bincount(codes, minlength=len(classes))
    most = np.maximum(counts - 1, 0)
    total_test = min(max(1, round(len(codes) * test_fraction)), int(most.sum()))
    if total_test < 1:
        raise InputError(
            f"Each of the {int((counts > 0).sum())} classes has one sample only; none can be split off for testing."
        )
    exact = counts * test_fraction
    n_test = np.minimum(np.floor(exact).astype(np.int64), most)
    by_remainder = np.argsort(-(exact - np.floor(exact)), kind="stable")
    # Rounds, as after the first some classes may have no more to give.
    while (missing := total_test - int(n_test.sum())) > 0:
        n_test[by_remainder[n_test[by_remainder] < most[by_remainder]][:missing]] += 1
    mask = np.zeros(len(codes), dtype=bool)
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(3, 1)))
    for code, count in enumerate(n_test):
        mask[generator.permutation(np.flatnonzero(codes == code))[:count]] = True
    return mask


def check_classes_split(mask: BoolArray, codes: NDArray[np.integer[Any]], classes: Sequence[str]) -> None:
    """`InputError` where a mask leaves a class without a training sample."""
    counts = np.bincount(codes[~mask], minlength=len(classes))
    unseen = [name for name, count in zip(classes, counts, strict=True) if not count]
    if unseen:
        raise InputError(
            f"All samples of the class{'es' if len(unseen) > 1 else ''} {quoted(unseen)} are test samples, so that "
            "nothing could be learned of it. Choose another split, or leave them out."
        )


def _check_draw(test_fraction: float, seed: int) -> None:
    if not 0 < test_fraction < 1:
        raise InputError(f"The test fraction must lie between 0 and 1, both excluded; got {test_fraction}.")
    if seed < 0:
        raise InputError(f"The seed must not be negative; got {seed}.")


def mask_from_column(values: FloatArray, name: str) -> BoolArray:
    """A test mask from a column of zeros and ones, shape (rows,). `InputError` for any other value."""
    odd = (values != 0) & (values != 1)
    if odd.any():
        raise InputError(
            f"The test mask '{name}' holds the value {values[odd][0]}; expected 0 or False for training samples and "
            "1 or True for test samples."
        )
    return np.asarray(values == 1)


def check_split(mask: BoolArray) -> None:
    """`InputError` where a mask leaves too few training samples, or no test sample."""
    n_test = int(mask.sum())
    n_train = mask.size - n_test
    if n_train < MINIMUM_TRAINING_SAMPLES or n_test < 1:
        raise InputError(
            f"The split of {mask.size} samples leaves {n_train} for training and {n_test} for testing; at least "
            f"{MINIMUM_TRAINING_SAMPLES} and 1 are needed."
        )
