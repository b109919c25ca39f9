"""Test samples, split off: drawn at random, or as a mask says."""

from __future__ import annotations

import numpy as np

from dkgp.data.stores.dataset_writer import MINIMUM_TRAINING_SAMPLES
from dkgp.data.types import BoolArray, FloatArray
from dkgp.errors import InputError

__all__ = ["check_split", "mask_from_column", "random_mask"]


def random_mask(n_samples: int, test_fraction: float, seed: int) -> BoolArray:
    """A random test mask, shape (n,), with round(n test_fraction) test samples, but at least one.

    It depends on n, the fraction and the seed alone, not on how the samples are read or stored.
    """
    if not 0 < test_fraction < 1:
        raise InputError(f"The test fraction must lie between 0 and 1, both excluded; got {test_fraction}.")
    if seed < 0:
        raise InputError(f"The seed must not be negative; got {seed}.")
    n_test = max(1, round(n_samples * test_fraction))
    mask = np.zeros(n_samples, dtype=bool)
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(3, 0)))
    if n_test < n_samples:
        mask[generator.choice(n_samples, n_test, replace=False, shuffle=False)] = True
    else:
        mask[:] = True
    return mask


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
