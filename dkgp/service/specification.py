"""What a job is: a command and its options in JSON, read into the dataclass that the command line makes.

Types are checked by pydantic on a model derived from the dataclass; ranges by the code that the command itself runs
before it works. What needs the data (a store that is not there, features that do not fit) is found when the job runs.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dkgp.errors import DkgpError, InputError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dkgp.commands.evaluate import EvaluateJob
    from dkgp.commands.predict import PredictJob
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.train import TrainJob
    from dkgp.commands.tune import TuneJob

    Job: TypeAlias = TrainJob | TuneJob | PredictJob | EvaluateJob

__all__ = [
    "COMMANDS",
    "OUTPUT_FIELDS",
    "JobPath",
    "job_from_options",
    "job_paths",
    "options_from_job",
    "options_schema",
    "run_job",
]

COMMANDS: tuple[str, ...] = ("train", "tune", "predict", "evaluate")
# What a job writes by itself; no two jobs under way may share one.
OUTPUT_FIELDS = ("out", "checkpoint", "plot", "log_json", "tiles")

LONGEST_TEXT = 4096
# Solvers may become known at any time.
_MODELS: dict[tuple[str, tuple[str, ...]], type[BaseModel]] = {}
# Where ranges are checked that depend on the number of samples, they are checked for the most there could be.
MANY_SAMPLES = 2**31

_PATH_FIELDS: dict[str, dict[str, Literal["read", "write"]]] = {
    "train": {
        "dataset": "read",
        "hyper": "read",
        "warm_start": "read",
        "out": "write",
        "checkpoint": "write",
        "plot": "write",
        "log_json": "write",
        "tiles": "write",
    },
    "tune": {"dataset": "read", "start": "read", "out": "write", "plot": "write"},
    "predict": {"model": "read", "dataset": "read", "out": "write"},
    "evaluate": {"prediction": "read", "dataset": "read", "plot": "write"},
}


@dataclass(frozen=True)
class JobPath:
    """A place that a job touches.

    Attributes
    ----------
    field : str
        The option that names it.
    url : str
        An absolute path or an fsspec URL, in the one spelling that dkgp uses.
    access : {"read", "write"}
    """

    field: str
    url: str
    access: Literal["read", "write"]


def job_from_options(command: str, options: Mapping[str, Any]) -> Job:
    """Return the job that the options describe.

    Parameters
    ----------
    command : str
        Of `COMMANDS`.
    options : mapping
        JSON with the fields of the command's dataclass; nested ones ("solver", "variance") are objects.

    Raises
    ------
    UsageError
        An unknown command or field, a value of another type, options that contradict each other.
    InputError
        A value out of range, or a path that means nothing to the service.
    """
    kind = _kind(command)
    if not isinstance(options, Mapping):
        raise UsageError(f"the options of a job are a JSON object; got {_shown(options)}")
    _refuse_unknown(command, kind, options, "")
    _refuse_unusual(options, "")
    job: Job = _build(kind, _checked(command, options), "")
    for field in _PATH_FIELDS[command]:
        _require_absolute(field, getattr(job, field))
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
    places = {field: getattr(job, field) for field in _PATH_FIELDS[command]}
    if command == "train":
        places |= {"checkpoint": job.checkpoint_url, "tiles": job.tiles_url}
    paths = [
        JobPath(field, normalise_url(value), _PATH_FIELDS[command][field])
        for field, value in places.items()
        if value is not None
    ]
    if command == "predict" and job.variance is not None and job.variance.keep_factor:
        paths.append(JobPath("model", normalise_url(job.model), "write"))
    return paths


def run_job(job: Job, reporter: Reporter) -> Document:
    """Run the job in this process, as its command would; errors as there."""
    command = next(command for command in COMMANDS if isinstance(job, _kind(command)))
    module = importlib.import_module(f"dkgp.commands.{command}")
    document: Document = getattr(module, f"run_{command}")(job, reporter)
    return document


def options_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of the command's options."""
    return _model(_kind(command)).model_json_schema()


def _kind(command: str) -> type[Any]:
    """The dataclass of a command; its module, and what that needs, is loaded only now."""
    if command not in COMMANDS:
        raise UsageError(f"a job's command is one of {', '.join(COMMANDS)}; got {_shown(command)}")
    module = importlib.import_module(f"dkgp.commands.{command}")
    kind: type[Any] = getattr(module, f"{command.capitalize()}Job")
    return kind


def _fields(kind: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default of every field of a dataclass; of a solver's options, of all that are declared."""
    declared = getattr(kind, "option_types", None)
    if declared is not None:
        found: dict[str, tuple[Any, Any]] = declared()
        return found
    hints = typing.get_type_hints(kind)
    made = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
        if field.name != "cluster"
    }
    return {name: (hints[name], default) for name, default in made.items()}


def _nested(annotation: Any) -> type[Any] | None:
    """The dataclass that a field holds, or may hold."""
    found = [part for part in (annotation, *typing.get_args(annotation)) if dataclasses.is_dataclass(part)]
    return typing.cast(type[Any], found[0]) if found else None


def _model(kind: type[Any]) -> type[BaseModel]:
    """A pydantic model with the dataclass's fields: strict, finite, and of bounded length."""
    from dkgp.solvers.registry import solver_names

    options = _fields(kind)
    key = kind.__qualname__, solver_names()
    if key in _MODELS:
        return _MODELS[key]
    try:
        from pydantic import ConfigDict, Field, create_model
    except ImportError:
        raise MissingExtraError("pydantic", "service", "Checking a job's options") from None

    fields: dict[str, Any] = {}
    for name, (annotation, default) in options.items():
        inner = _nested(annotation)
        if inner is not None:
            model = _model(inner)
            annotation = model | None if isinstance(annotation, types.UnionType) else model
            default = None if default is None else Field(default_factory=model)
        fields[name] = (annotation, ... if default is dataclasses.MISSING else default)
    settings = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, str_max_length=LONGEST_TEXT)
    made = create_model(kind.__name__, __config__=settings, __doc__=(kind.__doc__ or "").split("\n")[0], **fields)
    return _MODELS.setdefault(key, made)


def _checked(command: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, each of the type that its field has."""
    from pydantic import ValidationError

    try:
        # As JSON: a list may stand for a tuple there, and nothing else for what it is not.
        model = _model(_kind(command)).model_validate_json(json.dumps(options))
    except ValidationError as error:
        found: dict[str, list[str]] = {}
        for problem in error.errors(include_url=False, include_context=False):
            name = _field_name(problem["loc"], options)
            message = problem["msg"].replace("Input should be", "expected")
            if problem["type"] == "missing":
                message = "needed, and not given"
            found.setdefault(name, []).append(message[:1].lower() + message[1:])
        raise UsageError(
            "; ".join(
                f"{name}: {', or '.join(dict.fromkeys(messages))}{_got(name, options)}"
                for name, messages in found.items()
            )
        ) from None
    return model.model_dump(exclude_unset=True)


def _field_name(location: tuple[int | str, ...], options: Mapping[str, Any]) -> str:
    """Where the problem lies, as the user wrote it; pydantic appends the branch of a union that it tried."""
    names: list[str] = []
    held: Any = options
    for part in location:
        if not isinstance(held, Mapping) and names:
            break
        names.append(str(part))
        held = held.get(part) if isinstance(held, Mapping) else None
    return ".".join(names)


def _got(name: str, options: Mapping[str, Any]) -> str:
    held: Any = options
    for part in name.split("."):
        if not isinstance(held, Mapping) or part not in held:
            return ""
        held = held[part]
    return f"; got {_shown(held)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse_unknown(command: str, kind: type[Any], options: Mapping[str, Any], prefix: str) -> None:
    known = _fields(kind)
    for name, value in options.items():
        if name == "cluster" and not prefix:
            raise UsageError("cluster: jobs run on the service's own cluster; leave the field out")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            advice = f"did you mean '{prefix}{near[0]}'?" if near else f"expected some of {', '.join(known)}"
            raise UsageError(f"{prefix}{_shown(name)[1:-1]}: {command} has no such option; {advice}")
        inner = _nested(known[name][0])
        if inner is not None and isinstance(value, Mapping):
            _refuse_unknown(command, inner, value, f"{prefix}{name}.")


def _refuse_unusual(value: Any, name: str) -> None:
    """Refuse what is no JSON, and numbers and texts beyond all bounds."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_unusual(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unusual(item, name)
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise InputError(f"{name}: at most {LONGEST_TEXT:,} characters; got {len(value):,}")
        if "\0" in value or not value.isprintable():
            raise InputError(f"{name}: expected text without control characters; got {_shown(value)}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{name}: expected a finite number; got {value}")
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            raise InputError(f"{name}: expected a number below 2^63; got one of {value.bit_length():,} bits")
    elif value is not None:
        raise UsageError(f"{name}: expected JSON; got a {type(value).__name__}")


def _build(kind: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    known = _fields(kind)
    arguments = {}
    for name, value in values.items():
        inner = _nested(known[name][0])
        arguments[name] = _build(inner, value, f"{name}.") if inner is not None and value is not None else value
    with _naming(prefix.rstrip(".")):
        return kind(**arguments)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Put the field's name before what is wrong with its value."""
    try:
        yield
    except MissingExtraError:
        raise
    except DkgpError as error:
        raise type(error)(f"{field}: {error}" if field else str(error)) from None


def _difference(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found: dict[str, Any] = {}
    for name, (_, default) in _fields(type(value)).items():
        held = getattr(value, name)
        if default is dataclasses.MISSING or held != default:
            if dataclasses.is_dataclass(held):
                held = _difference(held)
            found[name] = list(held) if isinstance(held, tuple) else held
    return found


def _require_absolute(field: str, location: str | None) -> None:
    """Refuse a place that a process elsewhere would understand differently."""
    if location is None:
        return
    path = location.split("://", 1)[1] if location.startswith(("file://", "local://")) else location
    if "::" in location or location.startswith("memory:"):
        raise InputError(
            f"{field}: '{location}' means nothing to another process; expected an absolute path, or a URL such as "
            "s3://bucket/name.zarr"
        )
    if not path.startswith("/") and "://" not in path:
        raise InputError(
            f"{field}: expected an absolute path or a URL, since the service works in a folder of its own; "
            f"got '{location}'"
        )


def _check_train(job: TrainJob) -> None:
    from dkgp.commands.reporting.progress import SilentReporter
    from dkgp.commands.tree_sums import check_tree_error
    from dkgp.data.remote.storage import is_local
    from dkgp.solvers.registry import AUTO

    with _naming("solver"):
        job.solver.check()
        if job.solver.solver != AUTO:
            # What a solver refuses for want of memory depends on the data.
            job.solver.build(1, 1, 1, SilentReporter())
        job.check_tiles()
        job.solver.stopping()
    with _naming("tree_error"):
        check_tree_error(job.tree_error, job.solver.tolerance, job.solver.solver)
    if job.checkpoint_seconds < 0.0:
        raise InputError(
            f"checkpoint_seconds: expected a number of seconds, zero or more; got {job.checkpoint_seconds}"
        )
    if job.memory_limit_bytes is not None and job.memory_limit_bytes < 1:
        raise InputError(f"memory_limit_bytes: expected at least 1; got {job.memory_limit_bytes}")
    for field, path in (("plot", job.plot), ("log_json", job.log_json)):
        if path is not None and not is_local(path):
            raise InputError(f"{field}: expected a local file; got '{path}'")
    _check_plot(job.plot)
    if job.plot is not None and job.plot == job.log_json:
        raise UsageError(f"plot and log_json name the same file, '{job.plot}'; choose two")


def _check_tune(job: TuneJob) -> None:
    from dkgp.commands.refine import check_refinement
    from dkgp.models.tuning.likelihood_search import SearchSettings
    from dkgp.models.tuning.scores import check_folds
    from dkgp.models.tuning.subsets import plan_subsets

    SearchSettings(job.seed, job.learn_variance, job.tolerance, job.restarts)
    plan_subsets(MANY_SAMPLES, job.subset, subsets=job.subsets, seed=job.seed, holdout=job.holdout)
    check_folds(job.folds, job.subset)
    check_refinement(job.refine, only=job.refine_only, start=job.start, kernel=job.kernel)
    job.named()
    _check_plot(job.plot)


def _check_predict(job: PredictJob) -> None:
    if job.chunk_rows is not None and job.chunk_rows < 1:
        raise InputError(f"chunk_rows: expected at least 1; got {job.chunk_rows}")


def _check_evaluate(job: EvaluateJob) -> None:
    _check_plot(job.plot)


def _check_plot(path: str | None) -> None:
    from dkgp.commands.reporting.plots import check_plot_file

    if path is not None:
        with _naming("plot"):
            check_plot_file(path)


_RANGES: dict[str, Callable[[Any], None]] = {
    "train": _check_train,
    "tune": _check_tune,
    "predict": _check_predict,
    "evaluate": _check_evaluate,
}
