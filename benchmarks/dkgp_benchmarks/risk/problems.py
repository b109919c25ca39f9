"""Problems of a regularised risk: labels of -1 and 1, or numbers, with inputs, a kernel and samples to test on."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import UsageError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp_benchmarks.classify.problems import GENERATORS, PROBLEMS, load, splits

FloatArray = NDArray[np.float64]

# The kernel CG paper's sigma = 5 for pixels in [-1, 1], k = exp(-r^2 / (2 sigma^2)): 0.02 there, and four times that
# for pixels in [0, 1].
PIXEL_GAMMA = {"usps-4": 0.08}


@dataclass(frozen=True)
class RiskProblem:
    """Inputs (n, d) and (t, d) as the kernel takes them, targets (n, 1) and (t, 1).

    Attributes
    ----------
    name
    inputs, targets, test_inputs, test_targets
    kernel
        Of unit amplitude; None until it is found.
    remark
        What a reader must know.
    """

    name: str
    inputs: FloatArray
    targets: FloatArray
    test_inputs: FloatArray
    test_targets: FloatArray
    kernel: Kernel | None = None
    remark: str = ""

    @property
    def n(self) -> int:
        """Training samples."""
        return len(self.inputs)

    @property
    def found(self) -> Kernel:
        """The kernel, which has been found."""
        assert self.kernel is not None
        return self.kernel

    def columns(self, rows: FloatArray, others: FloatArray) -> FloatArray:
        """k(x, x') by compiled tiles: (len(rows), len(others))."""
        evaluator = TileEvaluator(self.found, "double")
        return np.array(evaluator.tile(evaluator.prepare(rows), evaluator.prepare(others)))

    def with_gamma(self, gamma: float) -> RiskProblem:
        """Return the problem with the kernel exp(-gamma r^2)."""
        return replace(self, kernel=SquaredExponential(gamma=(gamma,) * self.inputs.shape[1]))


def read_problem(name: str, folder: Path | None, n: int, seed: int, *, whole: bool = False) -> RiskProblem:
    """Read or generate a problem of two classes, at most n of its training samples.

    Inputs are standardised by the training samples, but for pixels, which stay as they are with the kernel CG paper's
    kernel.

    Parameters
    ----------
    name : str
        Of `dkgp_benchmarks.classify.problems.PROBLEMS`.
    folder : Path or None
        Of its file.
    n : int
        Training samples at most, drawn at random.
    seed : int
        Of all draws.
    whole : bool
        Train on test samples too: what is measured is the time of training.

    Raises
    ------
    UsageError
        There is no such problem, or its file is not here.
    InputError
        The file is not as expected.
    """
    if name not in PROBLEMS:
        raise UsageError(f"unknown problem '{name}'; there are {', '.join(PROBLEMS)}")
    problem = PROBLEMS[name]
    if problem.file is None and whole:
        # What is generated is as large as it is asked for.
        problem = replace(problem, n=n, n_test=2)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        inputs, codes = GENERATORS[name](n + 2, rng)
        train, test = np.arange(n), np.arange(n, n + 2)
    else:
        samples = load(problem, folder, seed)
        (split,) = splits(problem, samples, [0], seed)
        inputs, codes, test = samples.inputs, samples.codes, split.test
        train = np.arange(len(codes)) if whole and name not in PIXEL_GAMMA else split.train
        if len(train) > n:
            train = np.random.default_rng([seed, 19]).permutation(train)[:n]
    signs = np.where(codes == 1, 1.0, -1.0)[:, None]
    read = RiskProblem(name, inputs[train], signs[train], inputs[test], signs[test], remark=problem.remark)
    if name in PIXEL_GAMMA:
        return read.with_gamma(PIXEL_GAMMA[name])
    mean, std = read.inputs.mean(axis=0), read.inputs.std(axis=0)
    std = np.where(std > 0.0, std, 1.0)
    return replace(read, inputs=(read.inputs - mean) / std, test_inputs=(read.test_inputs - mean) / std)


def with_tuned_kernel(problem: RiskProblem, subset: int, seed: int) -> RiskProblem:
    """Find one length scale for all features by the marginal likelihood of signs, unless the kernel is known."""
    if problem.kernel is not None:
        return problem
    codes = (problem.targets[:, 0] > 0.0).astype(np.int64)
    dataset = memory_dataset(problem.inputs, codes.astype(np.float64))
    data = LabelledData(dataset, Labels(("-1", "+1"), codes))
    found = tune_labels(data, LabelTuning(subset, seed, isotropic=True))
    kernel = found.kernel
    assert isinstance(kernel, SquaredExponential)
    # Inputs are standardised already, and features that do not vary, which the data set leaves out, add no distance.
    return problem.with_gamma(float(kernel.feature_gamma[0]))
