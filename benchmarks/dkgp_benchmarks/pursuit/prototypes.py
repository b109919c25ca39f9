"""`dkgp bench prototypes`: how the choice of prototypes changes a fixed-size classifier, and what the choice takes.

Two questions: a model of all M prototypes that were chosen, M small; and a model of the few that sparse conjugate
directions pursuit takes of a large pool. Kernel and noise are tuned once for each problem, on its first split, and are
the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, UsageError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models import tune_dataset
from dkgp.models.classification.fixed_size.paths import Path
from dkgp.models.classification.fixed_size.system import Targets, fold_systems
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.prototypes import PROTOTYPES, check_prototypes, choose_prototypes
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp_benchmarks.classify.problems import PROBLEMS, splits
from dkgp_benchmarks.pursuit.tuned import path_errors, problem_samples, working

HERE = (("magic", "magic"), ("adult", "adult"))
STAND_IN = "made-ringnorm"
# Of the pool: sizes of models of all that were chosen, and cardinalities of the pursuit.
ALL_OF, FEW_OF = (0.1, 0.4), (0.025, 0.1, 0.4)
SUBSET = 2000
# k-centre by the plain distance of standardised inputs, as the paper has it, in place of the kernel's length scales.
UNSCALED = "k-centre, unscaled"
KINDS = (*PROTOTYPES, UNSCALED)


@dataclass(frozen=True)
class BenchPrototypesJob:
    """A comparison of ways to choose prototypes.

    Attributes
    ----------
    data
        Folder of .npz files; a generated problem without.
    problems
        Of `dkgp bench classify`; magic and adult, where they are here, by default.
    methods
        Names of prototypes; all by default.
    n, pool
        Training samples of a split at most, and prototypes that the pursuit chooses from.
    splits
        Of each problem.
    seed
        Of splits and choices.
    out
        File of the record.
    """

    data: str | None = None
    problems: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    n: int = 4000
    pool: int = 500
    splits: int = 3
    seed: int = 0
    out: str | None = None

    def check(self) -> None:
        """Refuse, before any work, what makes no sense."""
        for name, least in (("n", 20), ("pool", 10), ("splits", 1)):
            if getattr(self, name) < least:
                raise InputError(f"`{name}` must be at least {least}; got {getattr(self, name)}")
        for name in self.methods:
            if name != UNSCALED:
                check_prototypes(name)
        for name in self.problems:
            if name not in PROBLEMS:
                raise UsageError(f"unknown problem '{name}'; there are {', '.join(PROBLEMS)}")

    @property
    def folder(self) -> File | None:
        """Folder of the data."""
        return None if self.data is None else File(self.data).expanduser()

    @property
    def chosen_problems(self) -> tuple[str, ...]:
        """Problems by name."""
        folder = self.folder
        here = () if folder is None else tuple(name for name, file in HERE if (folder / f"{file}.npz").is_file())
        return self.problems or here or (STAND_IN,)


def run_bench_prototypes(job: BenchPrototypesJob, reporter: Reporter) -> Document:
    """Measure all kinds on all problems; return the record.

    Raises
    ------
    InputError, UsageError
        Numbers or names that make no sense, or data that are not here.
    """
    job.check()
    check_record_file(job.out)
    sizes = _sizes(job.pool, ALL_OF), _sizes(job.pool, FEW_OF)
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    parameters = {}
    with working() as executor:
        for name in job.chosen_problems:
            reporter.note(f"{name}: {job.splits} splits")
            kernel, noise, errors = _problem(job, name, executor, *sizes)
            parameters[name] = {"kernel": kernel.to_json(), "noise_variance": noise}
            for method, runs in errors.items():
                means, deviations = np.mean(runs, axis=0), np.std(runs, axis=0)
                values = dict(zip(_names(*sizes), means.tolist(), strict=True))
                spreads = {f"{what}_std": value for what, value in zip(values, deviations.tolist(), strict=True)}
                rows.append({"problem": name, "prototypes": method, **values, **spreads})
            for what in _names(*sizes)[:-1]:
                own = {row["prototypes"]: row[what] for row in rows if row["problem"] == name}
                figures[f"{name}: best of {what}"] = min(own, key=lambda method: own[method])
    document = report(
        "prototypes",
        "Prototypes of fixed-size classifiers: test error, %, and seconds to choose the pool",
        (
            Column("problem", "data", text=True),
            Column("prototypes", "prototypes", text=True),
            *(Column(what, what, ".2f") for what in _names(*sizes)),
        ),
        rows,
        figures,
        n=job.n,
        pool=job.pool,
        splits=job.splits,
        seed=job.seed,
        parameters=parameters,
    )
    return write_record(document, job.out)


def _sizes(pool: int, shares: Sequence[float]) -> list[int]:
    return [max(1, round(share * pool)) for share in shares]


def _names(all_of: Sequence[int], few_of: Sequence[int]) -> list[str]:
    return [*(f"all {size}" for size in all_of), *(f"pursued {size}" for size in few_of), "seconds"]


def _problem(
    job: BenchPrototypesJob, name: str, executor: BlockExecutor, all_of: list[int], few_of: list[int]
) -> tuple[Kernel, float, dict[str, list[list[float]]]]:
    """Figures of each kind, by split, in the order of `_names`."""
    problem, samples = problem_samples(name, job.folder, job.seed, job.n)
    errors: dict[str, list[list[float]]] = {method: [] for method in job.methods or KINDS}
    tuned: tuple[Kernel, float] | None = None
    for split in splits(problem, samples, range(job.splits), job.seed):
        train = split.train[: job.n]
        labels = Labels(("-1", "+1"), samples.codes[train])
        dataset = memory_dataset(samples.inputs[train], labels.codes.astype(np.float64))
        if tuned is None:
            hyper = tune_dataset(dataset, subset=min(SUBSET, len(train)), seed=job.seed, executor=executor)
            tuned = hyper.kernel, hyper.noise_variance
        test = dataset.standardisation.inputs(samples.inputs[split.test])
        with BlockedKernelOperator(tuned[0], tuned[1], dataset, executor) as operator:
            own = _Split(operator, labels.signs(), test, samples.codes[split.test], job.seed + split.index)
            for method, runs in errors.items():
                whole = [own.errors(method, size, [size])[0] for size in all_of]
                runs.append([*whole, *own.errors(method, job.pool, few_of)])
    assert tuned is not None
    return *tuned, errors


@dataclass(frozen=True)
class _Split:
    """A split, with its kernel and noise: those of the operator."""

    operator: BlockedKernelOperator
    signs: FloatArray
    test: FloatArray
    codes: NDArray[np.int64]
    seed: int

    def errors(self, method: str, size: int, cardinalities: list[int]) -> list[float]:
        """Test errors in per cent of the pursuit's models from so many prototypes; and seconds to choose these."""
        operator, began = self.operator, time.perf_counter()
        if method == UNSCALED:
            plain = SquaredExponential(gamma=(1.0,), n_features=operator.kernel.n_features)
            with BlockedKernelOperator(plain, 1.0, operator.context.source, operator.executor) as unscaled:
                _, rows = choose_prototypes("k-centre", unscaled, size, self.seed)
        else:
            _, rows = choose_prototypes(method, operator, size, self.seed, targets=self.signs)
        seconds = time.perf_counter() - began
        targets = Targets(self.signs, np.zeros(len(self.signs), dtype=np.intp), 1)
        (system,) = fold_systems(operator, rows, [operator.kernel], targets, "first")
        path = Path(system, operator.noise_variance)
        path.advance(max(cardinalities))
        shares = path_errors(path, operator.kernel(self.test, rows), self.codes, cardinalities)
        return [*(100.0 * share for share in shares), seconds]
