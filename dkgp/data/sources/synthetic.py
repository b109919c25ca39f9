"""Synthetic problems with a known truth, of any size, generated straight into a store.

Samples come in blocks of fixed length, each from its own seeded generator, so that a problem is the same whether it is
made in memory or in a store, in chunks of any size, and its first samples are those of a longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.dataset import DATASET_KIND, Dataset
from dkgp.data.stores.dataset_writer import DatasetWriter
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import ensure_writable
from dkgp.data.types import FloatArray, Location
from dkgp.errors import InputError
from dkgp.progress import Progress, ProgressCallback

GENERATION_ROWS = 8192
# Training samples, test samples and the function itself come from separate random streams.
_TRAIN_STREAM, _TEST_STREAM, _FUNCTION_STREAM = 0, 1, 2

BlockSampler = Callable[[np.random.Generator, int], FloatArray]
Truth = Callable[[FloatArray], FloatArray]


def friedman1_function(X: FloatArray) -> FloatArray:
    """Friedman's first function without noise (Friedman 1991, Annals of Statistics 19, section 4.3).

        y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5

    X is (n, d), d >= 5, in [0, 1]; the features from the sixth on play no part.
    """
    x1, x2, x3, x4, x5 = X[:, :5].T
    return np.asarray(10 * np.sin(np.pi * x1 * x2) + 20 * (x3 - 0.5) ** 2 + 10 * x4 + 5 * x5)


def friedman1(
    n_samples: int, *, n_features: int = 10, noise_std: float = 1.0, seed: int = 0, test: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Samples of Friedman's first problem, in memory.

    Parameters
    ----------
    n_samples
        n.
    n_features
        d >= 5; inputs are uniform in [0, 1]^d.
    noise_std
        Standard deviation of the Gaussian noise on the targets (1 in the GBCD paper; 0 for its test targets).
    seed
        The same seed gives the same samples as `write_friedman1`.
    test
        Draw from the test stream, which is independent of the training stream.

    Returns
    -------
    X (n, d), y (n,)
    """
    return _friedman1_problem(n_features, noise_std, seed).in_memory(n_samples, test)


def write_friedman1(
    train_url: Location,
    test_url: Location | None,
    n_train: int,
    n_test: int = 5000,
    *,
    noise_std: float = 1.0,
    seed: int = 0,
    n_features: int = 10,
    chunk_rows: int | None = None,
    progress: ProgressCallback | None = None,
    overwrite: bool = False,
) -> tuple[Dataset, Dataset | None]:
    """Generate Friedman's first problem into stores, block by block.

    The training targets carry noise of standard deviation `noise_std`; the test targets are free of noise, as in the
    GBCD paper. The test store has the standardisation of the training store.

    Parameters
    ----------
    train_url, test_url
        Where to write; no test store for None.
    n_train, n_test
        Numbers of samples.
    noise_std, seed, n_features
        As in `friedman1`.
    chunk_rows, overwrite
        As in `DatasetWriter.create`.
    progress
        Called after every block.

    Returns
    -------
    The training data and the test data, or None.
    """
    problem = _friedman1_problem(n_features, noise_std, seed)
    return problem.write((train_url, test_url), (n_train, n_test), chunk_rows, progress, overwrite)


class RBFMixture:
    """The function of Smola & Bartlett's (2001, section 5) synthetic problem.

        f(x) = sum_j c_j exp(-||x - z_j||^2 / width),    c_j ~ N(0, 1), z_j ~ N(0, I_d), x ~ N(0, I_d)

    with 200 centres, d = 20, width = 2 omega^2 = 40 and noise of variance 0.1 in the paper. The seed determines
    coefficients and centres.
    """

    def __init__(self, n_features: int = 20, n_centres: int = 200, width: float = 40.0, seed: int = 0) -> None:
        if n_features < 1 or n_centres < 1 or not width > 0:
            raise InputError(
                f"An RBF mixture needs at least one feature and one centre and a positive width; "
                f"got {n_features}, {n_centres} and {width}."
            )
        generator = _generator(seed, _FUNCTION_STREAM, 0)
        self.width = width
        self.centres: FloatArray = generator.standard_normal((n_centres, n_features))
        self.coefficients: FloatArray = generator.standard_normal(n_centres)

    def __call__(self, X: FloatArray) -> FloatArray:
        """The function at the rows of X (n, d), shape (n,)."""
        squares = (X**2).sum(axis=1)[:, None] + (self.centres**2).sum(axis=1)
        squared_distances = np.maximum(squares - 2 * X @ self.centres.T, 0)
        return np.asarray(np.exp(-squared_distances / self.width) @ self.coefficients)


def rbf_mixture(
    n_samples: int,
    *,
    n_features: int = 20,
    n_centres: int = 200,
    width: float = 40.0,
    noise_variance: float = 0.1,
    seed: int = 0,
    test: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Samples of Smola & Bartlett's RBF mixture, in memory: X (n, d), y (n,). See `RBFMixture`."""
    return _rbf_mixture_problem(n_features, n_centres, width, noise_variance, seed).in_memory(n_samples, test)


def write_rbf_mixture(
    train_url: Location,
    test_url: Location | None,
    n_train: int = 10000,
    n_test: int = 2000,
    *,
    noise_variance: float = 0.1,
    seed: int = 0,
    n_features: int = 20,
    n_centres: int = 200,
    width: float = 40.0,
    chunk_rows: int | None = None,
    progress: ProgressCallback | None = None,
    overwrite: bool = False,
) -> tuple[Dataset, Dataset | None]:
    """Generate Smola & Bartlett's RBF mixture into stores; parameters as in `RBFMixture` and `write_friedman1`.

    The test targets are free of noise.
    """
    problem = _rbf_mixture_problem(n_features, n_centres, width, noise_variance, seed)
    return problem.write((train_url, test_url), (n_train, n_test), chunk_rows, progress, overwrite)


def house_prices(n_samples: int, *, seed: int = 0) -> Iterator[dict[str, FloatArray]]:
    """Yield blocks of an invented town's houses, column by column: area, age, lat, lon and price.

    The price falls with the distance from the centre and with the age. Its noise has a standard deviation of 15. The
    values are rounded as those of a file are.
    """
    low, high = np.array([30.0, 0.0, 48.0, 16.2]), np.array([250.0, 100.0, 48.3, 16.6])

    def draw(generator: np.random.Generator, rows: int) -> FloatArray:
        X = generator.uniform(low, high, (rows, 4))
        return np.column_stack([np.round(X[:, :2], 1), np.round(X[:, 2:], 4)])

    def worth(X: FloatArray) -> FloatArray:
        area, age, lat, lon = X.T
        return np.asarray(3.0 * area * np.exp(-6.0 * np.hypot(lat - 48.2, lon - 16.37)) * (1.0 - 0.004 * age))

    problem = _Problem(4, 15.0, seed, draw, worth)
    for index, rows in problem.blocks(n_samples):
        X, y = problem.block(index, rows, _TRAIN_STREAM, problem.noise_std)
        yield dict(zip(("area", "age", "lat", "lon", "price"), [*X.T, np.round(y, 2)], strict=True))


@dataclass(frozen=True)
class _Problem:
    """A problem: how inputs are drawn, the truth, and the noise on the training targets."""

    n_features: int
    noise_std: float
    seed: int
    draw: BlockSampler
    truth: Truth

    def block(self, index: int, rows: int, stream: int, noise_std: float) -> tuple[FloatArray, FloatArray]:
        # Always a whole block, then cut: the first rows of a block do not depend on how many of them are wanted.
        generator = _generator(self.seed, stream, index)
        X = self.draw(generator, GENERATION_ROWS)
        y = self.truth(X) + noise_std * generator.standard_normal(GENERATION_ROWS)
        return X[:rows], y[:rows]

    def blocks(self, n_samples: int) -> list[tuple[int, int]]:
        return [
            (index, min(GENERATION_ROWS, n_samples - start))
            for index, start in enumerate(range(0, n_samples, GENERATION_ROWS))
        ]

    def in_memory(self, n_samples: int, test: bool) -> tuple[FloatArray, FloatArray]:
        if n_samples < 1:
            raise InputError(f"The number of samples must be at least 1; got {n_samples}.")
        stream = _TEST_STREAM if test else _TRAIN_STREAM
        parts = [self.block(index, rows, stream, self.noise_std) for index, rows in self.blocks(n_samples)]
        return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])

    def write(
        self,
        urls: tuple[Location, Location | None],
        sizes: tuple[int, int],
        chunk_rows: int | None,
        progress: ProgressCallback | None,
        overwrite: bool,
    ) -> tuple[Dataset, Dataset | None]:
        """Write the training store, and a test store without noise where it has a place."""
        (train_url, test_url), (n_train, n_test) = urls, sizes
        if n_train < 2 or (test_url is not None and n_test < 1):
            raise InputError(f"Expected at least 2 training samples and 1 test sample; got {n_train} and {n_test}.")
        if test_url is not None and normalise_url(test_url) == normalise_url(train_url):
            raise InputError(f"The training and the test store are the same place, '{train_url}'; choose two.")
        # Both outputs are looked at before the first is written.
        for url in urls:
            if url is not None:
                ensure_writable(url, overwrite, DATASET_KIND)

        def write_store(url: Location, n_samples: int, training: Standardisation | None) -> Dataset:
            stream, noise = (_TRAIN_STREAM, self.noise_std) if training is None else (_TEST_STREAM, 0.0)
            phase = f"{'training' if training is None else 'test'} samples"
            features = [f"x{index}" for index in range(1, self.n_features + 1)]
            with DatasetWriter.create(url, features, ["y"], chunk_rows, overwrite, n_samples) as writer:
                for index, rows in self.blocks(n_samples):
                    writer.append(*self.block(index, rows, stream, noise))
                    if progress is not None:
                        progress(Progress(phase, writer.n_samples, n_samples, "rows"))
                return writer.finish(training)

        train = write_store(train_url, n_train, None)
        return train, None if test_url is None else write_store(test_url, n_test, train.standardisation)


def _friedman1_problem(n_features: int, noise_std: float, seed: int) -> _Problem:
    if n_features < 5:
        raise InputError(f"Friedman's first problem needs at least 5 features; got {n_features}.")
    if not noise_std >= 0:
        raise InputError(f"The noise's standard deviation must not be negative; got {noise_std}.")
    return _Problem(n_features, noise_std, seed, lambda g, rows: g.random((rows, n_features)), friedman1_function)


def _rbf_mixture_problem(n_features: int, n_centres: int, width: float, noise_variance: float, seed: int) -> _Problem:
    if not noise_variance >= 0:
        raise InputError(f"The noise's variance must not be negative; got {noise_variance}.")
    function, noise_std = RBFMixture(n_features, n_centres, width, seed), float(np.sqrt(noise_variance))
    return _Problem(n_features, noise_std, seed, lambda g, rows: g.standard_normal((rows, n_features)), function)


def _generator(seed: int, stream: int, index: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"The seed must not be negative; got {seed}.")
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(stream, index)))
