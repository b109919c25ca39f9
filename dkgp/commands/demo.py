"""`dkgp demo`: Friedman's first problem from nothing to an evaluated exact GP, each step as its command does it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from dkgp.cluster import ClusterOptions
from dkgp.commands.evaluate import EvaluateJob, read_coverage, read_pairs, run_evaluate
from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.predict import PredictJob, run_predict
from dkgp.commands.reporting.documents import Document, dump, is_document, plain
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import check_output_file, write_text
from dkgp.commands.reporting.plots import check_plot_file, plot_run
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.resuming import difference
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob, run_train
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.data import ensure_writable, open_dataset, open_model, open_prediction, write_friedman1
from dkgp.data.remote.storage import exists
from dkgp.data.stores.dataset import DATASET_KIND
from dkgp.data.stores.models.exact import MODEL_KIND
from dkgp.data.stores.prediction_store import PREDICTION_KIND
from dkgp.errors import InputError
from dkgp.models.variance.variances import VarianceSettings
from dkgp.models.warm_up import helped
from dkgp.options import SEED, Part
from dkgp.registry import Option

QUICK_SAMPLES, QUICK_TEST_SAMPLES, QUICK_SUBSET = 5000, 1000, 500
# The test targets are noise-free, so the variance that belongs to them is the function's: a few thousandths of the
# noise's here, and known to 10 % from the factor alone.
VARIANCE = VarianceSettings(gap=0.1, max_passes=0.0, latent=True)


OUT = Option(help="Folder for everything; what an earlier demo left there is replaced.", metavar="DIR", place="write")
SAMPLES = Option(help="Training samples.", spellings=("--samples", "--n"))
TEST_SAMPLES = Option(help="Test samples.", spellings=("--test-samples", "--n-test"))
QUICK = Option(help="5,000 training samples: seconds instead of minutes.")
RESUME = Option(help="Go on with a demo that was stopped or killed.")


@dataclass(frozen=True)
class DemoJob:
    """The demo's sizes and place: a folder of its own. It tunes on `subset` samples."""

    out: Annotated[str, OUT] = "demo-output"
    n: Annotated[int, SAMPLES] = 100_000
    n_test: Annotated[int, TEST_SAMPLES] = 5000
    subset: int = 2000
    quick: Annotated[bool, QUICK] = False
    solver: Annotated[SolverOptions, Part(without=("precision", "duality_gap", "seed"))] = field(
        default_factory=SolverOptions
    )
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    def sized(self) -> DemoJob:
        """Return the job with the sizes that `quick` stands for."""
        if not self.quick:
            return self
        return replace(self, n=QUICK_SAMPLES, n_test=QUICK_TEST_SAMPLES, subset=QUICK_SUBSET, quick=False)

    def settings(self) -> Document:
        """Everything that a demo that is resumed must share."""
        sizes = {name: getattr(self, name) for name in ("n", "n_test", "subset", "seed")}
        return dict(plain({**sizes, "solver": self.solver.to_json()}))


def run_demo(job: DemoJob, reporter: Reporter) -> Document:
    """Generate, tune, train, predict, evaluate, draw; return the figures of the whole run.

    Raises
    ------
    InputError
        Sizes that make no problem, a folder that holds something else, or another demo than the one to resume; nothing
        has been written.
    """
    job = job.sized()
    folder = Path(job.out)
    train_url, test_url = str(folder / "train.zarr"), str(folder / "test.zarr")
    model_url, prediction_url = str(folder / "model.zarr"), str(folder / "prediction.zarr")
    hyper_file, plot_file, record_file = folder / "hyper.json", folder / "demo.png", folder / "demo.json"
    if job.n < 2 or job.n_test < 1:
        raise InputError(f"the demo needs at least 2 training samples and 1 test sample; got {job.n} and {job.n_test}")
    check_plot_file(plot_file)
    earlier = _earlier(job, record_file, reporter) if job.resume else None
    if earlier is not None and earlier["finished"]:
        reporter.note(f"the demo in '{folder}' is done")
        return earlier
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
    training = TrainJob(
        train_url,
        str(hyper_file),
        model_url,
        solver=replace(job.solver, seed=job.seed),
        cluster=job.cluster,
        overwrite=True,
    )
    variance = replace(VARIANCE, seed=job.seed)
    predicting = PredictJob(model_url, test_url, prediction_url, variance, cluster=job.cluster, overwrite=True)
    with PeakMemory() as memory, helped():
        phases = _Phases(record_file, job.settings(), earlier, memory)

        def generate() -> Document:
            with reporter.work("generate") as progress:
                write_friedman1(
                    train_url, test_url, job.n, job.n_test, seed=job.seed, progress=progress, overwrite=True
                )
            return {}

        def draw() -> Document:
            prediction, test = open_prediction(prediction_url), open_dataset(test_url)
            plot_run(
                plot_file,
                open_model(model_url).history,
                *read_pairs(prediction, test),
                coverage=read_coverage(prediction, test, noise_free=True),
                tolerance=job.solver.tolerance,
                title=f"Friedman1, n = {job.n:,}: RMSE {evaluated['rmse']:.4f} on noise-free test targets",
            )
            return {}

        tuning = TuneJob(train_url, str(hyper_file), subset=job.subset, seed=job.seed, overwrite=True)
        phases.run("generate", generate)
        tuned = phases.run("tune", lambda: run_tune(tuning, reporter))
        resume = earlier is not None and training.begun
        trained = phases.run("train", lambda: run_train(replace(training, resume=resume), reporter))
        resume = earlier is not None and exists(prediction_url)
        predicted = phases.run("predict", lambda: run_predict(replace(predicting, resume=resume), reporter))
        evaluated = phases.run(
            "evaluate", lambda: run_evaluate(EvaluateJob(prediction_url, test_url, noise_free=True), reporter)
        )
        phases.run("plot", draw)
    document: Document = {
        "command": "demo",
        "finished": True,
        "out": str(folder),
        "settings": job.settings(),
        "n": job.n,
        "n_test": job.n_test,
        **{name: evaluated[name] for name in ("rmse", "nlpd", "coverage_95")},
        **{f"variance_{name}": evaluated[f"variance_{name}"] for name in ("gap_mean", "gap_max", "unmet")},
        **{name: trained[name] for name in ("d", "converged", "gradient_inf_norm", "column_passes", "iterations")},
        "tolerance": job.solver.tolerance,
        "noise_variance": tuned["noise_variance"],
        "seconds": sum(phases.seconds.values()),
        "seconds_by_phase": phases.seconds,
        "peak_memory_bytes": phases.peak_bytes,
        "kernel_matrix_bytes": 8 * job.n * job.n,
        "plot": str(plot_file),
        "train": trained,
        "predict": predicted,
        "evaluation": evaluated,
        "warnings": list(reporter.warnings),
    }
    write_text(record_file, dump(document) + "\n")
    return document


def _earlier(job: DemoJob, record_file: Path, reporter: Reporter) -> Document | None:
    """The record of the demo to go on with; None, and a warning, where there is none."""
    if not is_document(record_file, "demo"):
        reporter.warn(f"there is no demo in '{job.out}' to resume; it starts from the beginning")
        return None
    earlier: Document = json.loads(record_file.read_text(encoding="utf-8"))
    other = difference(earlier.get("settings", {}), job.settings())
    if other is not None:
        raise InputError(f"the demo in '{job.out}' has another {other}; repeat its options, or start without `resume`")
    return earlier


class _Phases:
    """The phases of a demo, each with its seconds and what came of it, on record as soon as it is done."""

    def __init__(self, file: Path, settings: Document, earlier: Document | None, memory: PeakMemory) -> None:
        self._file, self._settings, self._memory = file, settings, memory
        self._earlier_peak = 0 if earlier is None else int(earlier["peak_memory_bytes"])
        self._done: dict[str, Document] = {} if earlier is None else earlier["phases"]
        self.seconds: dict[str, float] = {} if earlier is None else earlier["seconds_by_phase"]
        self._save()

    @property
    def peak_bytes(self) -> int:
        """The largest peak of all the runs that it took."""
        return max(self._earlier_peak, self._memory.bytes)

    def run(self, name: str, work: Callable[[], Document]) -> Document:
        """Return what comes of a phase, from the record where it is done."""
        if name not in self._done:
            began, before = time.perf_counter(), self.seconds.get(name, 0.0)
            try:
                document = work()
            finally:
                self.seconds[name] = before + time.perf_counter() - began
                self._save()
            self._done[name] = document
            self._save()
        return self._done[name]

    def _save(self) -> None:
        record = {
            "command": "demo",
            "finished": False,
            "settings": self._settings,
            "phases": self._done,
            "seconds_by_phase": self.seconds,
            "peak_memory_bytes": self.peak_bytes,
        }
        write_text(self._file, dump(record) + "\n")
