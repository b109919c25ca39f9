"""Specifications of jobs: a command and its options in JSON, read into the command line's own dataclass.

Types are checked by `dkgp.service.reading`; ranges by the code that the command itself runs before it works. What needs
the data (a store that is not there, features that do not fit) is found when the job runs.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dkgp.errors import InputError, UsageError
from dkgp.options import options_of
from dkgp.service.reading import adapter, fields_of, naming, read, shown

if TYPE_CHECKING:
    from dkgp.commands.classify import ClassifyJob
    from dkgp.commands.evaluate import EvaluateJob
    from dkgp.commands.predict import PredictJob
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.sparse import SparseJob
    from dkgp.commands.train import TrainJob
    from dkgp.commands.tune import TuneJob
    from dkgp.fit import FitJob

    Job: TypeAlias = TrainJob | SparseJob | ClassifyJob | TuneJob | PredictJob | EvaluateJob | FitJob

COMMANDS: tuple[str, ...] = ("train", "sparse", "classify", "tune", "predict", "evaluate", "fit")
# Of those that are no room of `dkgp.commands`.
_MODULES = {"fit": "dkgp.fit"}
# Modules that run commands which may take another one first.
_CHAINED = {"train": "dkgp.commands.chained.training"}
# What a job writes by itself; no two jobs under way may share one.
OUTPUT_FIELDS = ("out", "checkpoint", "plot", "log_json", "tiles")

# Where ranges are checked that depend on the number of samples, they are checked for the most there could be.
MANY_SAMPLES = 2**31


@dataclass(frozen=True)
class JobPath:
    """A place that a job touches: the option that names it, and an absolute path or an fsspec URL as dkgp spells it."""

    field: str
    url: str
    access: Literal["read", "write"]


def job_from_options(command: str, options: Mapping[str, Any]) -> Job:
    """Return the job that the options describe, a JSON object with the fields of the command's dataclass.

    Nested dataclasses ("solver", "settings", "variance") are objects in turn. `UsageError` for an unknown command or
    field, a value of another type, or options that contradict each other; `InputError` for a value out of range, or a
    path that means nothing to the service.
    """
    from dkgp.commands.presets import PRESETS, settled
    from dkgp.operators.product_error import renamed

    kind = _kind(command)
    if isinstance(options, Mapping) and "cluster" in options:
        raise UsageError("cluster: jobs run on the service's own cluster; leave the field out")
    # Jobs that an earlier version stored.
    job: Job = read(kind, renamed(options) if isinstance(options, Mapping) else options, command)
    if command in PRESETS:
        with naming("as_in_the_paper"):
            job = settled(command, job)
    for field in _places(command):
        _require_absolute(field, getattr(job, field))
    for source in _sources(job):
        _require_absolute("sources", source)
    _RANGES[command](job)
    return job


def options_from_job(job: Job) -> dict[str, Any]:
    """Return the options that make the job: JSON, without the cluster and without what has its default value."""
    return _difference(job)


def job_paths(command: str, options: Mapping[str, Any]) -> list[JobPath]:
    """Return every place that the job reads or writes, the default place of checkpoints included.

    Errors as for `job_from_options`.
    """
    from dkgp.data.remote.storage import normalise_url

    job: Any = job_from_options(command, options)
    access = _places(command)
    places = {field: getattr(job, field) for field in access}
    if hasattr(job, "checkpoint_url"):
        places["checkpoint"] = job.checkpoint_url
    if command == "train":
        places["tiles"] = job.tiles_url
    paths = [
        JobPath(field, normalise_url(value), access.get(field, "write"))
        for field, value in places.items()
        if value is not None
    ]
    if command == "train" and job.tune:
        paths.append(JobPath("hyper", normalise_url(job.hyper), "write"))
    if command == "predict" and job.variance is not None and job.variance.keep_factor:
        paths.append(JobPath("model", normalise_url(job.model), "write"))
    # As they were given too, since programs read a text that goes through symbolic links and back differently.
    sources = dict.fromkeys(text for source in _sources(job) for text in (normalise_url(source), source))
    return paths + [JobPath("sources", source, "read") for source in sources]


def run_job(job: Job, reporter: Reporter) -> Document:
    """Run the job in this process, as its command would; errors as there."""
    command = next(command for command in COMMANDS if isinstance(job, _kind(command)))
    module = importlib.import_module(_CHAINED.get(command, _module(command)))
    document: Document = getattr(module, f"run_{command}")(job, reporter)
    return document


def options_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of the command's options."""
    return adapter(_kind(command)).json_schema()


def _kind(command: str) -> type[Any]:
    """The dataclass of a command; its module, and what that needs, is loaded only now."""
    if command not in COMMANDS:
        raise UsageError(f"a job's command is one of {', '.join(COMMANDS)}; got {shown(command)}")
    module = importlib.import_module(_module(command))
    kind: type[Any] = getattr(module, f"{command.capitalize()}Job")
    return kind


def _module(command: str) -> str:
    return _MODULES.get(command, f"dkgp.commands.{command}")


def _sources(job: Any) -> list[str]:
    """Return the files that a job ingests, and the store that it does so like; none of most."""
    ingestion = getattr(job, "ingestion", None)
    if ingestion is None:
        return []
    return [*ingestion.sources, *([] if ingestion.like is None else [ingestion.like])]


def _places(command: str) -> dict[str, Literal["read", "write"]]:
    """The fields that name files and stores, and what is done with those."""
    options = options_of(_kind(command))
    return {name: option.place for name, option in options.items() if option.place is not None}


def _difference(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    options: dict[str, Any] = {}
    for name, (_, default) in fields_of(type(value)).items():
        field_value = getattr(value, name)
        if default is dataclasses.MISSING or field_value != default:
            if dataclasses.is_dataclass(field_value):
                field_value = _difference(field_value)
            options[name] = list(field_value) if isinstance(field_value, tuple) else field_value
    return options


def _require_absolute(field: str, location: str | None) -> None:
    """Refuse a place that a process elsewhere would understand differently."""
    if location is None:
        return
    from dkgp.data.remote.storage import split_address

    with naming(field):
        protocol, path = split_address(location)
    if "::" in location or location.startswith("memory:"):
        raise InputError(
            f"{field}: '{location}' means nothing to another process; expected an absolute path, or a URL such as "
            "s3://bucket/name.zarr"
        )
    if protocol == "file" and not path.startswith("/"):
        raise InputError(
            f"{field}: expected an absolute path or a URL, since the service works in a folder of its own; "
            f"got '{location}'"
        )


def _check_train(job: TrainJob) -> None:
    from dkgp.commands.reporting.progress import SilentReporter
    from dkgp.commands.solving import check_product_error
    from dkgp.operators.product_error import ProductError
    from dkgp.solvers.registry import AUTO

    with naming("solver"):
        job.solver.check()
        if job.solver.solver != AUTO:
            # What a solver refuses for want of memory depends on the data.
            job.solver.build(1, 1, 1, SilentReporter())
        job.check_tiles()
        job.solver.stopping()
    with naming("product_error"):
        check_product_error(ProductError.of(job.product_error), job.solver.tolerance, job.solver.solver)
    _check_training(job)


def _check_sparse(job: SparseJob) -> None:
    job.check()
    _check_training(job)


def _check_classify(job: ClassifyJob) -> None:
    from dkgp.commands.classify import check_job

    check_job(job)
    _check_training(job)


def _check_training(job: TrainJob | SparseJob | ClassifyJob) -> None:
    """Check what every run that trains a model has: side files."""
    from dkgp.data.remote.storage import is_local

    for field, path in (("plot", job.plot), ("log_json", job.log_json)):
        if path is not None and not is_local(path):
            raise InputError(f"{field}: expected a local file; got '{path}'")
    _check_plot(job.plot)
    if job.plot is not None and job.plot == job.log_json:
        raise UsageError(f"plot and log_json name the same file, '{job.plot}'; choose two")


def _check_tune(job: TuneJob) -> None:
    from dkgp.models.tuning.likelihood_search import SearchSettings
    from dkgp.models.tuning.scores import check_folds
    from dkgp.models.tuning.subsets import plan_subsets

    SearchSettings(job.seed, job.learn_variance, job.tolerance, job.restarts)
    plan_subsets(MANY_SAMPLES, job.subset, subsets=job.subsets, seed=job.seed, holdout=job.holdout)
    check_folds(job.folds, job.subset)
    job.check()
    _check_plot(job.plot)


def _check_evaluate(job: EvaluateJob) -> None:
    _check_plot(job.plot)


def _check_fit(job: FitJob) -> None:
    from dkgp.commands.ingest import IngestJob
    from dkgp.data.sources.formats import format_options

    job.check()
    if not job.ingestion.sources:
        raise UsageError("sources: expected at least one file, folder or URL")
    # What a pattern stands for would be found when the job runs, and nobody could say whether it may be read.
    patterns = [source for source in job.ingestion.sources if set(source) & set("*?[")]
    if patterns:
        raise InputError(f"sources: '{patterns[0]}' is a pattern; name the files, or their folder")
    for name in ("out", "test_out", "overwrite"):
        if getattr(job.ingestion, name) != getattr(IngestJob, name):
            raise UsageError(
                f"ingestion.{name}: a fit puts its data sets into its own folder, `out`, and replaces them by its own "
                "`overwrite`; leave it out"
            )
    known = format_options()
    for name in job.ingestion.options:
        if name not in known:
            raise UsageError(f"ingestion.options: no format has the option '{name}'; there are {', '.join(known)}")


def _check_plot(path: str | None) -> None:
    from dkgp.commands.reporting.plots import check_plot_file

    if path is not None:
        with naming("plot"):
            check_plot_file(path)


_RANGES: dict[str, Callable[[Any], None]] = {
    "train": _check_train,
    "sparse": _check_sparse,
    "classify": _check_classify,
    "tune": _check_tune,
    # Values out of range are refused by the dataclass.
    "predict": lambda job: None,
    "evaluate": _check_evaluate,
    "fit": _check_fit,
}
