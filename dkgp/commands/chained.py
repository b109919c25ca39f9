"""Several commands in sequence in one folder, as `dkgp demo` and `dkgp fit` run them.

The record of a step is written as soon as the step is done. A run that was stopped or killed therefore resumes with the
unfinished step, from the checkpoint of that step's command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dkgp.cluster import ClusterOptions
from dkgp.codec import difference
from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.recipe import command, recipe_of
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import (
    Document,
    check_output_file,
    dump,
    is_document,
    plain,
    write_text,
)
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import ensure_writable, open_dataset, open_model, open_prediction, write_friedman1
from dkgp.data.remote.claims import locked
from dkgp.data.remote.storage import exists, read_object
from dkgp.data.stores.dataset import DATASET_KIND
from dkgp.data.stores.models.regression import MODEL_KIND
from dkgp.data.stores.prediction_store import PREDICTION_KIND
from dkgp.errors import InputError, MissingExtraError
from dkgp.models.variance.settings import VarianceSettings
from dkgp.options import SEED, Part
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.classify import ClassifyJob
    from dkgp.commands.predict.job import PredictJob
    from dkgp.commands.sparse import SparseJob
    from dkgp.commands.train import TrainJob


def earlier_record(command: str, file: Path, settings: Document, reporter: Reporter) -> Document | None:
    """Return the record of the run to resume; warn and return None if there is no such record.

    Raises `InputError` if the record has other settings.
    """
    if not is_document(file, command):
        reporter.warn(f"there is no {command} in '{file.parent}' to resume; the {command} starts from the beginning")
        return None
    earlier: Document = json.loads(read_object(file))
    other = difference(earlier.get("settings", {}), settings)
    if other is not None:
        raise InputError(
            f"the {command} in '{file.parent}' has another {other}; repeat its options, or start without `resume`"
        )
    return earlier


class Steps:
    """The steps of a run: the duration and the document of each step, and the peak memory of all steps.

    Parameters
    ----------
    command : str
        The command that runs the steps.
    file : Path
        The file of the record.
    settings : Document
        Settings that a resumed run must share.
    earlier : Document, optional
        The record of the run that this one resumes.
    """

    def __init__(
        self,
        command: str,
        file: Path,
        settings: Document,
        earlier: Document | None,
        memory: PeakMemory,
        reporter: Reporter,
    ) -> None:
        self._command, self._file, self._settings = command, file, settings
        self._memory, self._reporter = memory, reporter
        self.goes_on = earlier is not None
        self._earlier_peak = 0 if earlier is None else int(earlier["peak_memory_bytes"])
        self._done: dict[str, Document] = {} if earlier is None else earlier["phases"]
        self.seconds: dict[str, float] = {} if earlier is None else earlier["seconds_by_phase"]
        self._save()

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the whole run, resumed runs included, in bytes."""
        return max(self._earlier_peak, self._memory.bytes)

    def is_done(self, name: str) -> bool:
        """Return True if the record contains the step."""
        return name in self._done

    def run(self, name: str, work: Callable[[], Document]) -> Document:
        """Run a step and return its document; a finished step is read from the record."""
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

    def command(self, name: str, job: Any) -> Document:
        """Run a job's command as a step."""
        return self.run(name, lambda: recipe_of(job).run(job, self._reporter))

    def train(self, job: TrainJob | SparseJob | ClassifyJob, name: str = "train") -> Document:
        """Train a model; resume an earlier run if there is one."""
        return self.command(name, replace(job, resume=self.goes_on and job.begun))

    def predict(self, job: PredictJob, name: str = "predict") -> Document:
        """Predict; resume an earlier run if there is one."""
        return self.command(name, replace(job, resume=self.goes_on and exists(job.out)))

    def finish(self, document: Document) -> Document:
        """Write the document of the whole run to the record; return it."""
        write_text(self._file, dump(document) + "\n")
        return document

    def _save(self) -> None:
        record = {
            "command": self._command,
            "finished": False,
            "settings": self._settings,
            "phases": self._done,
            "seconds_by_phase": self.seconds,
            "peak_memory_bytes": self.peak_bytes,
        }
        write_text(self._file, dump(record) + "\n")


QUICK_SAMPLES, QUICK_TEST_SAMPLES, QUICK_SUBSET = 5000, 1000, 500
# The test targets are noise-free, so the matching variance is the latent function's. It is a few thousandths of the
# noise variance here, and the factor alone determines it to 10 %.
VARIANCE = VarianceSettings(gap=0.1, max_passes=0.0, latent=True)


OUT = Option(help="Folder for everything; results of an earlier demo are replaced.", metavar="DIR", place="write")
SAMPLES = Option(help="Training samples.", spellings=("--samples", "--n"))
TEST_SAMPLES = Option(help="Test samples.", spellings=("--test-samples", "--n-test"))
QUICK = Option(help="5,000 training samples: seconds instead of minutes.")
RESUME = Option(help="Continue a demo that was stopped or killed.")


@command(
    """
    The command generates noisy training data and noise-free test data (Friedman's first problem), and runs tune, train,
    predict with variances, and evaluate. It ends with a table and a plot. A second run replaces the results of the
    first one; with --resume it continues an interrupted run. A million samples take a quarter of an hour on two cores.
    """,
    "dkgp demo --out demo-output",
    "dkgp demo --out demo-output --quick",
    "dkgp demo --out million --samples 1000000 --resume",
    must_converge=True,
)
@dataclass(frozen=True)
class DemoJob:
    """The demo's sizes and its folder, which nothing else may use. It tunes on `subset` samples."""

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
        """Return the job with `quick` replaced by its sizes."""
        if not self.quick:
            return self
        return replace(self, n=QUICK_SAMPLES, n_test=QUICK_TEST_SAMPLES, subset=QUICK_SUBSET, quick=False)

    def settings(self) -> Document:
        """The settings that a resumed demo must share."""
        sizes = {name: getattr(self, name) for name in ("n", "n_test", "subset", "seed")}
        return dict(plain({**sizes, "solver": self.solver.to_json()}))


def run_demo(job: DemoJob, reporter: Reporter) -> Document:
    """Generate, tune, train, predict, evaluate and plot; return the figures of the whole run.

    Raises `InputError`: impossible sizes, a folder with other content, or a resumed demo with other settings. Nothing
    has been written then. Raises `OutputExistsError` if another process writes to the folder.
    """
    with locked(job.out):
        return _run(job.sized(), reporter)


def _run(job: DemoJob, reporter: Reporter) -> Document:
    from dkgp.commands.evaluate import EvaluateJob
    from dkgp.commands.evaluation import read_coverage, read_pairs
    from dkgp.commands.predict.job import PredictJob
    from dkgp.commands.reporting.plots import check_plot_file, plot_run
    from dkgp.commands.train import TrainJob
    from dkgp.commands.tune import TuneJob
    from dkgp.models.warm_up import helped

    folder = Path(job.out)
    train_url, test_url = str(folder / "train.zarr"), str(folder / "test.zarr")
    model_url, prediction_url = str(folder / "model.zarr"), str(folder / "prediction.zarr")
    hyper_file, plot_file, record_file = folder / "hyper.json", folder / "demo.png", folder / "demo.json"
    if job.n < 2 or job.n_test < 1:
        raise InputError(f"the demo needs at least 2 training samples and 1 test sample; got {job.n} and {job.n_test}")
    draws = True
    try:
        check_plot_file(plot_file)
    except MissingExtraError as error:
        reporter.note(f"{error}. The demo continues without a plot")
        draws = False
    earlier = earlier_record("demo", record_file, job.settings(), reporter) if job.resume else None
    if earlier is not None and earlier["finished"]:
        reporter.note(f"the demo in '{folder}' is already complete")
        return earlier
    # The record is written first. A folder with a record belongs to the demo, and its other content can be recomputed.
    replaceable = job.overwrite or is_document(record_file, "demo")
    for path in (hyper_file, plot_file, record_file):
        check_output_file(path, replace=replaceable, option="`out`")
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
        steps = Steps("demo", record_file, job.settings(), earlier, memory, reporter)

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

        tuning = TuneJob(
            train_url, str(hyper_file), subset=job.subset, all_samples="none", seed=job.seed, overwrite=True
        )
        steps.run("generate", generate)
        tuned = steps.command("tune", tuning)
        trained = steps.train(training)
        predicted = steps.predict(predicting)
        evaluated = steps.command("evaluate", EvaluateJob(prediction_url, test_url, noise_free=True))
        if draws:
            steps.run("plot", draw)
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
        "seconds": sum(steps.seconds.values()),
        "seconds_by_phase": steps.seconds,
        "peak_memory_bytes": steps.peak_bytes,
        "kernel_matrix_bytes": 8 * job.n * job.n,
        "plot": str(plot_file) if draws else None,
        "train": trained,
        "predict": predicted,
        "evaluation": evaluated,
        "warnings": list(reporter.warnings),
    }
    return steps.finish(document)
