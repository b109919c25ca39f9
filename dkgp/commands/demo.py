"""`dkgp demo`: Friedman's first problem from nothing to an evaluated exact GP, each step as its command does it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dkgp.cluster import ClusterOptions
from dkgp.commands.evaluate import EvaluateJob, read_coverage, read_pairs, run_evaluate
from dkgp.commands.predict import PredictJob, run_predict
from dkgp.commands.reporting.documents import Document, dump, is_document
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import check_output_file, write_text
from dkgp.commands.reporting.plots import check_plot_file, plot_run
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob, run_train
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.data import ensure_writable, open_dataset, open_model, open_prediction, write_friedman1
from dkgp.data.stores.dataset import DATASET_KIND
from dkgp.data.stores.model_store import MODEL_KIND
from dkgp.data.stores.prediction_store import PREDICTION_KIND
from dkgp.errors import InputError
from dkgp.models.variance.variances import VarianceSettings
from dkgp.models.warm_up import helped

__all__ = ["DemoJob", "run_demo"]

QUICK_SAMPLES, QUICK_TEST_SAMPLES, QUICK_SUBSET = 5000, 1000, 500
# The test targets are noise-free, so the variance that belongs to them is the function's: a few thousandths of the
# noise's here, and known to 10 % from the factor alone.
VARIANCE = VarianceSettings(gap=0.1, max_passes=0.0, latent=True)


@dataclass(frozen=True)
class DemoJob:
    """The demo's sizes and place.

    Attributes
    ----------
    out
        A folder of the demo's own; what an earlier demo left there is replaced.
    n, n_test
        Training samples, with unit Gaussian noise, and test samples, without.
    subset
        Samples to tune on.
    quick
        Small sizes, for a look at the commands rather than at the method.
    overwrite
        Replace stores of the same names, whoever made them.
    """

    out: str
    n: int = 100_000
    n_test: int = 5000
    subset: int = 2000
    seed: int = 0
    quick: bool = False
    overwrite: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    solver: SolverOptions = field(default_factory=SolverOptions)

    def sized(self) -> DemoJob:
        """Return the job with the sizes that `quick` stands for."""
        if not self.quick:
            return self
        return replace(self, n=QUICK_SAMPLES, n_test=QUICK_TEST_SAMPLES, subset=QUICK_SUBSET, quick=False)


def run_demo(job: DemoJob, reporter: Reporter) -> Document:
    """Generate, tune, train, predict, evaluate, draw; return the figures of the whole run.

    Raises
    ------
    InputError
        Sizes that make no problem, or a folder that holds something else; nothing has been written.
    """
    job = job.sized()
    folder = Path(job.out)
    train_url, test_url = str(folder / "train.zarr"), str(folder / "test.zarr")
    model_url, prediction_url = str(folder / "model.zarr"), str(folder / "prediction.zarr")
    hyper_file, plot_file, record_file = folder / "hyper.json", folder / "demo.png", folder / "demo.json"
    if job.n < 2 or job.n_test < 1:
        raise InputError(f"the demo needs at least 2 training samples and 1 test sample; got {job.n} and {job.n_test}")
    check_plot_file(plot_file)
    # The record is written first: a folder that has one is the demo's own, and what else it holds can be made again.
    replaceable = job.overwrite or is_document(record_file, "demo")
    for path in (hyper_file, plot_file, record_file):
        check_output_file(path, replace=replaceable, option="--out")
    for url, kind in (
        (train_url, DATASET_KIND),
        (test_url, DATASET_KIND),
        (model_url, MODEL_KIND),
        (prediction_url, PREDICTION_KIND),
    ):
        ensure_writable(url, replaceable, kind)
    write_text(record_file, dump({"command": "demo", "finished": False}) + "\n")
    clock = _Phases()
    with PeakMemory() as memory, helped():
        with clock.phase("generate"), reporter.work("generate") as progress:
            write_friedman1(train_url, test_url, job.n, job.n_test, seed=job.seed, progress=progress, overwrite=True)
        with clock.phase("tune"):
            tuned = run_tune(
                TuneJob(train_url, str(hyper_file), subset=job.subset, seed=job.seed, overwrite=True), reporter
            )
        with clock.phase("train"):
            trained = run_train(
                TrainJob(
                    train_url,
                    str(hyper_file),
                    model_url,
                    solver=replace(job.solver, seed=job.seed),
                    cluster=job.cluster,
                    overwrite=True,
                ),
                reporter,
            )
        with clock.phase("predict"):
            variance = replace(VARIANCE, seed=job.seed)
            predicted = run_predict(
                PredictJob(model_url, test_url, prediction_url, variance, cluster=job.cluster, overwrite=True), reporter
            )
        with clock.phase("evaluate"):
            evaluated = run_evaluate(EvaluateJob(prediction_url, test_url, noise_free=True), reporter)
        with clock.phase("plot"):
            prediction, test = open_prediction(prediction_url), open_dataset(test_url)
            plot_run(
                plot_file,
                open_model(model_url).history,
                *read_pairs(prediction, test),
                coverage=read_coverage(prediction, test, noise_free=True),
                tolerance=job.solver.tolerance,
                title=f"Friedman1, n = {job.n:,}: RMSE {evaluated['rmse']:.4f} on noise-free test targets",
            )
        peak_bytes = memory.bytes
    document: Document = {
        "command": "demo",
        "finished": True,
        "out": str(folder),
        "n": job.n,
        "n_test": job.n_test,
        **{name: evaluated[name] for name in ("rmse", "nlpd", "coverage_95")},
        **{f"variance_{name}": evaluated[f"variance_{name}"] for name in ("gap_mean", "gap_max", "unmet")},
        **{name: trained[name] for name in ("d", "converged", "gradient_inf_norm", "column_passes", "iterations")},
        "tolerance": job.solver.tolerance,
        "noise_variance": tuned["noise_variance"],
        "seconds": sum(clock.seconds.values()),
        "seconds_by_phase": clock.seconds,
        "peak_memory_bytes": peak_bytes,
        "kernel_matrix_bytes": 8 * job.n * job.n,
        "plot": str(plot_file),
        "train": trained,
        "predict": predicted,
        "evaluation": evaluated,
        "warnings": list(reporter.warnings),
    }
    write_text(record_file, dump(document) + "\n")
    return document


class _Phases:
    """Wall time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began
