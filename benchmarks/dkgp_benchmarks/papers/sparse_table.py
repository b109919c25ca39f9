"""Table 4 of the GBCD paper: sparse models and the exact one at the same number of regressors, over several draws.

Every draw has its own training and test samples; hyperparameters are tuned on the first, by other samples than those
that a subset of data takes. Seconds of variances are of the first draw.

Table 5, two models of a problem of several targets, is made of the same runs: `dkgp_benchmarks.papers.several_targets`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.problem import write_rows
from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.commands.reporting.measurements import Column, median, median_ratio
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.progress import Reporter, SilentReporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import open_model, save_model
from dkgp.kernels import TileEvaluator
from dkgp.models import Hyperparameters
from dkgp.models.exact import train
from dkgp.models.prediction.predict import predict
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.train import train_sparse
from dkgp.models.variance.settings import VarianceSettings
from dkgp_benchmarks.library import Library, PreparedData, prepare_data
from dkgp_benchmarks.papers.tables import STANDS_IN, said, section
from dkgp_benchmarks.sparse.specs import SparseSpec

FloatArray = NDArray[np.float64]

EXACT = "gbcd"
METHODS = ("sd", "sr", "mpgp", "sggp")
# Of Table 4: seconds of training and RMSE of SD, SR, MPGP and GBCD, and the training samples.
PUBLISHED: dict[str, tuple[int, dict[str, tuple[float, float]]]] = {
    "california": (18_000, {"sd": (3, 0.514), "sr": (48, 0.477), "mpgp": (514, 0.475), EXACT: (221, 0.472)}),
    "outaouais": (20_000, {"sd": (5, 0.434), "sr": (61, 0.326), "mpgp": (627, 0.221), EXACT: (5021, 0.122)}),
    "kin40k": (30_000, {"sd": (3, 0.386), "sr": (85, 0.164), "mpgp": (815, 0.113), EXACT: (4233, 0.071)}),
    "sarcos": (44_484, {"sd": (4, 0.169), "sr": (142, 0.128), "mpgp": (1389, 0.121), EXACT: (1879, 0.107)}),
    "friedman1": (100_000, {"sd": (3, 0.031), "sr": (231, 0.015), "mpgp": (2721, 0.012), EXACT: (3301, 0.009)}),
}
PAPER_BASIS = 2_000
# One round, and a basis of a few.
WARM_UP_BASIS, WARM_UP_PASSES = 8, 1e-9
# A basis is at most this share of the samples, and a difference within so many standard errors is none.
LARGEST_BASIS_SHARE, STANDARD_ERRORS = 0.25, 2.0
VARIANCE_GAP, MOST_VARIANCES = 0.02, 500
# Training samples of a data set that the paper does not have; what is added to a draw's seed for its bases.
OTHER_SAMPLES, OTHER_SEED = 10_000, 1_000

COLUMNS = (
    Column("model", "model", text=True),
    Column("seconds", "training, s", ",.2f"),
    Column("paper_seconds", "paper, s", ",.0f"),
    Column("seconds_ratio", "/ GBCD", ".3f"),
    Column("paper_seconds_ratio", "paper", ".3f"),
    Column("rmse", "RMSE", ".4f"),
    Column("spread", "+-", ".4f"),
    Column("paper_rmse", "paper", ".3f"),
    Column("rmse_ratio", "/ exact", ".3f"),
    Column("paper_rmse_ratio", "paper", ".3f"),
    Column("variance_ms", "variance, ms", ".3f"),
    Column("note", "", text=True),
)


@dataclass(frozen=True)
class SparseTable:
    """The table's settings.

    Attributes
    ----------
    library
        Data sets.
    basis_size
        Regressors; at most a quarter of the samples.
    draws
        Of training and test samples.
    n, n_test, subset, seed
        As of the job; `n` the paper's where it is None.
    solver
        Of the exact model.
    methods
        Each with settings of its own if need be.
    with_variances
        Whether the exact model's variances are timed, too.
    """

    library: Library
    basis_size: int
    draws: int
    n: int | None
    n_test: int
    subset: int
    seed: int
    solver: SolverOptions
    methods: tuple[str, ...] = METHODS
    with_variances: bool = True

    def section(self, name: str, draws: Sequence[Document]) -> Document:
        """Make the table of a data set from its draws."""
        published = PUBLISHED.get(STANDS_IN.get(name, name), (0, {}))[1]
        models = list(draws[0]["models"])
        runs = {model: [draw["models"][model] for draw in draws] for model in models}
        problem = draws[0]["problem"]
        rows = [_row(model, runs, published) for model in models]
        sizes = (
            f"n = {problem['n']:,}, d = {problem['d']}, m = {draws[0]['basis_size']:,}, {problem['n_test']:,} test "
            f"samples"
        )
        figures: dict[str, Any] = {
            "gaussian_process": said(Hyperparameters.from_json(problem["hyperparameters"])),
            **compared({model: _rmse(runs[model]) for model in runs}),
        }
        if published:
            other = f": of {STANDS_IN[name]}, another data set" if name in STANDS_IN else ""
            n = PUBLISHED[STANDS_IN.get(name, name)][0]
            figures["the_papers_figures_are"] = f"of n = {n:,}, m = {PAPER_BASIS:,}{other}"
        return section(f"table_4:{name}", f"Table 4: {name}, {sizes}, {len(draws)} draws", COLUMNS, rows, **figures)

    def draws_of(
        self,
        name: str,
        folder: Path,
        reporter: Reporter,
        keep: Callable[[str, Callable[[], Document]], Document] = lambda name, make: make(),
    ) -> Iterator[Document]:
        """Measure the draws of a data set, one after the other: every model's figures on each.

        Hyperparameters are those of the first.
        """
        found: Hyperparameters | None = None
        warm: set[str] = set()
        with reporter.work(f"sparse models: {name}") as show:
            for draw in range(self.draws):

                def measure(draw: int = draw, found: Hyperparameters | None = found) -> Document:
                    return self._draw(name, draw, folder / f"draw-{draw}", found, reporter, show, warm)

                document = keep(f"draw-{draw}", measure)
                found = Hyperparameters.from_json(document["problem"]["hyperparameters"])
                yield document

    def _draw(
        self,
        name: str,
        draw: int,
        folder: Path,
        found: Hyperparameters | None,
        reporter: Reporter,
        show: Callable[[WorkProgress], None],
        warm: set[str],
    ) -> Document:
        n = PUBLISHED.get(name, (OTHER_SAMPLES, {}))[0]
        seed = self.seed + draw
        arguments = (self.library, name, self.n or n, self.n_test, self.subset, seed, folder, reporter)
        data = prepare_data(*arguments, found=found)
        m = min(self.basis_size, max(1, int(LARGEST_BASIS_SHARE * data.n)))
        models: dict[str, dict[str, Any]] = {}
        with open_executor(ClusterOptions(kind="none"), data.n, reporter) as executor:
            for spec in [SparseSpec.read(text) for text in self.methods]:
                show(WorkProgress(spec.text, draw, self.draws, "draws"))
                if spec.text not in warm:  # compiled code is loaded before a clock starts
                    _sparse(data, SparseSettings(**spec.sized(min(m, WARM_UP_BASIS), seed)), executor)
                    warm.add(spec.text)
                # Not the seed that hyperparameters are tuned with: their own samples flatter a subset of data.
                models[spec.text] = _sparse(data, SparseSettings(**spec.sized(m, seed + OTHER_SEED)), executor)
            show(WorkProgress(EXACT, draw, self.draws, "draws"))
            if EXACT not in warm:
                _exact(data, self.solver.changed(seed=seed, max_passes=WARM_UP_PASSES), executor, None)
                warm.add(EXACT)
            variances = folder if self.with_variances and not draw else None
            models[EXACT] = _exact(data, self.solver.changed(seed=seed), executor, variances)
        return {"problem": {"name": name, **data.to_json()}, "basis_size": m, "models": plain(models)}


def compared(rmse: dict[str, FloatArray]) -> dict[str, str]:
    """Judgement of each pair in the paper's order of test errors, by the same draws.

    A difference within two standard errors of the paired differences is a tie.
    """
    greedy = [model for model in rmse if model.startswith("sggp")]
    best = min(greedy, key=lambda model: rmse[model].mean(), default=None)
    order = [model for model in ("sd", "sr", "mpgp", best, EXACT) if model in rmse]
    figures = {}
    for worse, better in pairwise(order):
        figures[f"{worse} above {better}"] = _judged(rmse[worse], rmse[better])
    for chosen in ("mpgp", best):
        if chosen in rmse and "sr" in rmse and not _judged(rmse["sr"], rmse[chosen]).startswith("yes"):
            figures[f"random against {chosen}"] = "a random basis is as good"
    return figures


def _judged(worse: FloatArray, better: FloatArray) -> str:
    difference = worse - better
    share = difference.mean() / better.mean()
    if len(difference) < 2:
        return f"{'yes' if share > 0.0 else 'reversed'}: {share:+.1%}, of one draw"
    error = float(difference.std(ddof=1)) / np.sqrt(len(difference))
    if abs(difference.mean()) <= STANDARD_ERRORS * error:
        verdict = "tied"
    else:
        verdict = "yes" if share > 0.0 else "reversed"
    return f"{verdict}: {share:+.1%} +- {error / better.mean():.1%}"


def _sparse(data: PreparedData, settings: SparseSettings, executor: BlockExecutor) -> dict[str, Any]:
    """Train and predict; seconds of training are those of the choice and the fit."""
    trained = train_sparse(data.train, data.found.kernel, data.found.noise_variance, executor, settings)
    parts, model = trained.summary["seconds_by_part"], trained.model
    mean, inputs = model.mean(data.test_inputs), data.test_inputs[:MOST_VARIANCES]
    began = time.perf_counter()
    model.variance(inputs)
    variance_seconds = time.perf_counter() - began
    return {
        "seconds": parts["choice"] + parts["fit"],
        "rmse": _error(mean, data),
        "absolute_errors": _absolute(mean, data),
        "variance_ms": 1e3 * variance_seconds / len(inputs),
        "note": "",
    }


def _exact(data: PreparedData, options: SolverOptions, executor: BlockExecutor, folder: Path | None) -> dict[str, Any]:
    """The exact model by greedy block coordinate descent; with a folder, some variances, in proven intervals."""
    hyper = data.found
    solver = options.build(data.n, data.inputs.shape[1], data.n_targets, SilentReporter())
    trained = train(
        data.train, hyper.kernel, hyper.noise_variance, executor, solver=solver, stopping=options.stopping()
    )
    alpha = trained.solution.alpha
    evaluator = TileEvaluator(hyper.kernel, "double")
    mean = evaluator.matmat(evaluator.prepare(data.test_inputs), evaluator.prepare(data.inputs), alpha)
    run = {
        "seconds": trained.summary["seconds"],
        "rmse": _error(mean, data),
        "absolute_errors": _absolute(mean, data),
        "variance_ms": None,
        "note": "" if trained.solution.converged else trained.solution.reason.message,
    }
    if folder is not None:
        model, few = str(folder / "model.zarr"), folder / "few.zarr"
        save_model(
            model,
            kernel=hyper.kernel.to_json(),
            noise_variance=hyper.noise_variance,
            alpha=alpha,
            dataset=data.train,
            certificate=trained.certificate.to_json(),
            summary=trained.summary,
        )
        count = min(MOST_VARIANCES, data.test.n_samples)
        test = write_rows(data.test, np.arange(count), few, data.test.standardisation)
        began, settings = time.perf_counter(), VarianceSettings(gap=VARIANCE_GAP)
        predict(open_model(model), test, str(folder / "predictions.zarr"), executor, variance=settings)
        run["variance_ms"] = 1e3 * (time.perf_counter() - began) / count
    return run


def _row(
    model: str, runs: dict[str, list[dict[str, Any]]], published: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    """Figures of a model beside the paper's, both as ratios to the exact model's."""
    own, exact = runs[model], runs[EXACT]
    rmse = _rmse(own)
    row: dict[str, Any] = {
        "model": "exact (gbcd)" if model == EXACT else model,
        "seconds": median([run["seconds"] for run in own]),
        "seconds_ratio": median_ratio([run["seconds"] for run in own], [run["seconds"] for run in exact]),
        "rmse": float(rmse.mean()),
        "spread": float(rmse.std(ddof=1)) if len(rmse) > 1 else None,
        "rmse_ratio": float(rmse.mean() / _rmse(exact).mean()),
        "variance_ms": own[0]["variance_ms"],
        "note": own[-1]["note"],
        "draws": rmse.tolist(),
    }
    if model in published:
        seconds, error = published[model]
        row["paper_seconds"], row["paper_rmse"] = seconds, error
        row["paper_seconds_ratio"] = seconds / published[EXACT][0]
        row["paper_rmse_ratio"] = error / published[EXACT][1]
    return row


def _rmse(runs: Sequence[dict[str, Any]]) -> FloatArray:
    return np.asarray([run["rmse"] for run in runs])


def _error(mean: FloatArray, data: PreparedData) -> float:
    """Equation 16, the mean over targets under the root."""
    return float(np.sqrt(np.mean((mean - data.test_targets) ** 2)))


def _absolute(mean: FloatArray, data: PreparedData) -> list[float]:
    """The mean absolute error of each target, in standard deviations of the training targets."""
    errors: list[float] = np.mean(np.abs(mean - data.test_targets), axis=0).tolist()
    return errors
