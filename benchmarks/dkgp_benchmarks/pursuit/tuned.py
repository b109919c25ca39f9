"""Classification problems of the pursuit paper's figures: a split, tuned on its training samples, and its paths.

The paper's figures 7 to 11 take hyperparameters as given once they are tuned: one length scale, by the profile search,
on all training samples as prototypes. Every figure then looks at paths of eq. 29 from sums over the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import Kernel
from dkgp.models.classification.fixed_size.paths import Path
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.train import TrainedFixedSize, train_fixed_size
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.operators import BlockedKernelOperator
from dkgp_benchmarks.classify.problems import PROBLEMS, ClassProblem, Samples, load, splits
from dkgp_benchmarks.pursuit.job import BenchPursuitJob

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

RIPLEY = ClassProblem("ripley", 250, 1000, 0, "ripley")
# Two normal clouds for each class, of one variance; those fitted to Ripley's own samples lie within 0.013 of these.
RIPLEY_CENTRES = np.array([[[-0.7, 0.3], [0.3, 0.3]], [[-0.3, 0.7], [0.4, 0.7]]])
RIPLEY_VARIANCE = 0.03


@dataclass(frozen=True)
class TunedProblem:
    """A split with tuned hyperparameters.

    Attributes
    ----------
    name : str
    dataset : Dataset
        Training samples.
    labels : Labels
    inputs : (n, d) float64
        Standardised training inputs.
    test_inputs, test_codes : (r, d) float64, (r,) int
        Test samples, by the training samples' standardisation.
    trained : TrainedFixedSize
    """

    name: str
    dataset: Dataset
    labels: Labels
    inputs: FloatArray
    test_inputs: FloatArray
    test_codes: NDArray[np.int64]
    trained: TrainedFixedSize

    @property
    def kernel(self) -> Kernel:
        """Tuned."""
        return self.trained.model.kernel

    @property
    def noise_variance(self) -> float:
        """s2 = 1 / gamma_K, tuned."""
        return self.trained.model.noise_variance

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyperparameters and size, as JSON."""
        kernel = self.kernel.to_json()
        return {"n": self.dataset.n_samples, "kernel": kernel, "noise_variance": self.noise_variance}

    @property
    def test_error(self) -> float:
        """Share of wrong labels of the tuned model."""
        decisions = self.trained.model.decisions(self.test_inputs)[:, 0]
        return float(np.mean((decisions >= 0.0) != (self.test_codes == 1)))


def folder_of(job: BenchPursuitJob) -> File | None:
    """The folder of .npz files."""
    return None if job.data is None else File(job.data).expanduser()


@contextmanager
def working() -> Iterator[BlockExecutor]:
    """An executor of the threads that there are here."""
    executor = LocalExecutor()
    try:
        yield executor
    finally:
        executor.close()


def ripley(n: int, rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64]]:
    """Draw n samples of Ripley's synthetic problem, as many of each class; the least error possible is 8.8 %."""
    codes = np.arange(n) % 2
    centres = RIPLEY_CENTRES[codes, rng.integers(0, 2, n)]
    return centres + np.sqrt(RIPLEY_VARIANCE) * rng.standard_normal((n, 2)), codes.astype(np.int64)


def problem_samples(name: str, folder: File | None, seed: int, most: int | None = None) -> tuple[ClassProblem, Samples]:
    """Samples of a problem by name: "ripley" from its file, or drawn anew where there is none.

    Of a generated problem there are as many training samples as are wanted, `most`.

    Raises
    ------
    UsageError, InputError
        See `dkgp_benchmarks.classify.problems.load`.
    """
    if name != RIPLEY.name:
        problem = PROBLEMS[name]
        if problem.file is None and most is not None:
            problem = replace(problem, n=most)
        return problem, load(problem, folder, seed)
    if folder is not None and (folder / "ripley.npz").is_file():
        return RIPLEY, load(RIPLEY, folder, seed)
    inputs, codes = ripley(RIPLEY.n + RIPLEY.n_test, np.random.default_rng([seed, 1996]))
    mask = np.arange(len(codes)) >= RIPLEY.n
    return RIPLEY, Samples(inputs, codes, mask)


def tuned(
    name: str,
    folder: File | None,
    executor: BlockExecutor,
    *,
    seed: int = 0,
    most: int | None = None,
    pool: int | None = None,
) -> TunedProblem:
    """Tune on the first split of a problem.

    Parameters
    ----------
    name : str
    folder : path, optional
        Of .npz files.
    executor : BlockExecutor
    seed : int
    most : int, optional
        Training samples at most.
    pool : int, optional
        Prototypes that are tuned with; all training samples by default.
    """
    problem, samples = problem_samples(name, folder, seed, most)
    split = splits(problem, samples, [0], seed)[0]
    train = split.train if most is None else split.train[:most]
    X, codes = samples.inputs[train], samples.codes[train]
    labels, dataset = Labels(("-1", "+1"), codes), memory_dataset(X, codes.astype(np.float64))
    settings = FixedSizeSettings(
        pool=pool or len(X), folds=10, search="profile", isotropic=True, probability=False, seed=seed
    )
    trained = train_fixed_size(LabelledData(dataset, labels), settings, executor)
    return TunedProblem(
        name,
        dataset,
        labels,
        dataset.inputs(0, dataset.n_samples),
        dataset.standardisation.inputs(samples.inputs[split.test]),
        samples.codes[split.test],
        trained,
    )


def system_of(
    problem: TunedProblem,
    prototypes: FloatArray,
    executor: BlockExecutor,
    folds: IndexArray | None = None,
    intercept: str = "first",
) -> FoldSystem:
    """Sums of eq. 29 by fold, one fold by default; the intercept as in `FixedSizeSettings`."""
    groups = np.zeros(problem.dataset.n_samples, dtype=np.intp) if folds is None else folds.astype(np.intp)
    targets = Targets(problem.labels.signs(), groups, int(groups.max()) + 1)
    with BlockedKernelOperator(problem.kernel, 1.0, problem.dataset, executor) as operator:
        return fold_systems(operator, prototypes, [problem.kernel], targets, intercept)[0]


def path_errors(path: Path, columns: FloatArray, codes: NDArray[np.int64], cardinalities: Sequence[int]) -> list[float]:
    """Shares of wrong labels at rows of `columns`, K(X, Z) (r, M), by the path's models of these cardinalities."""
    shares = []
    for cardinality in cardinalities:
        model = path.model(cardinality)
        decisions = columns[:, model.order] @ model.weights[:, 0] + model.intercept[0]
        shares.append(float(np.mean((decisions >= 0.0) != (codes == 1))))
    return shares
