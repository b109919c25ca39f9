"""The job of `dkgp sparse`: its options, their checks and its run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.codec import difference, identity, to_json
from dkgp.commands.job_options import AS_IN_THE_PAPER, DATASET, HYPER, MODEL_OUT, TrainingJob
from dkgp.commands.recipe import command
from dkgp.commands.reporting.outputs import RecordLog
from dkgp.commands.reporting.plots import plot_basis
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.run import warn_of_labels
from dkgp.commands.signals import interruptible
from dkgp.commands.solving import inputs_within, room
from dkgp.commands.training import Outcome, TrainingRun
from dkgp.data import Dataset, open_dataset, recognise
from dkgp.data.remote.storage import normalise_url
from dkgp.data.sources.base import Column, Source
from dkgp.data.sources.formats import expand_locations, open_source
from dkgp.data.stores.dataset import DATASET_KIND
from dkgp.data.stores.models.regression import SPARSE_MODEL_KIND, SparseRecord, open_sparse_model
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.context import RunContext
from dkgp.models.memory import Memory
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.sparse.ladder import FIRST_RUNG, LadderPlan, LadderTarget, Rung, climb
from dkgp.models.sparse.settings import GREEDY, NEAR_SETTINGS, SparseSettings
from dkgp.models.sparse.stored import save_sparse
from dkgp.models.sparse.train import SparseProblem, TrainedSparse, train_sparse
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.product_error import PRODUCT_ERROR, Value
from dkgp.options import Part, options_of
from dkgp.registry import FURTHER, Option
from dkgp.solvers import Checkpointing
from dkgp.solvers.greedy_basis import GreedyProgress

DEFAULTS = {each.name: each.default for each in fields(SparseSettings)}


def size_or_auto(text: str) -> int | Literal["auto"]:
    """Read a basis size, or "auto"."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"{text!r} is neither a number of basis samples nor auto.") from None


BASIS_SIZE = Option(
    help="Number of basis samples. auto: as many as `target_distance` or `gap` requires.  [default: 1000, or all "
    "samples if there are fewer]",
    type=size_or_auto,
    metavar="M|auto",
    least=1,
)
LARGEST_BASIS = Option(
    help="For `basis_size` auto: largest number of basis samples.  [default: the largest number that is cheaper than "
    "the exact model]",
    metavar="M",
    group=FURTHER,
)
GIVEN_BASIS = Option(
    help="Use this basis instead of choosing one. FILE is a table of points in the features' own units, or of sample "
    "numbers from 0, in any format that `dkgp ingest` reads; a dataset store; another sparse model; or the file "
    "of `hyper`, if `dkgp tune --objective bound` wrote its basis to it.",
    metavar="FILE",
    place="read",
    group=FURTHER,
)
GAP = Option(
    help="Target for Smola and Bartlett's relative duality gap, for a greedy basis or `basis_size` auto. If the "
    "model misses it, the exit code is 4.",
    group=GREEDY,
)
TARGET_DISTANCE = Option(
    help="Target for the proven root mean square distance from the exact mean over the training samples, in standard "
    "deviations of the targets. If the model misses it, the exit code is 4.",
    metavar="SHARE",
    above=0,
)

PASSES_ERROR = replace(
    PRODUCT_ERROR,
    help="For `certify_passes`: largest accepted error of each entry of a product with the kernel matrix. E: "
    "approximate products with a proven error of at most E (for kernels that decrease with the distance, and few "
    "features). auto, none: evaluate all kernel entries. The proven distance includes this error.",
)


@command(
    """
    The model consists of m basis samples (inducing points) and predicts without the training set. Training time grows
    with n m², memory with m².
    """,
    "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json",
    "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --gap 0.025 --plot basis.png",
    "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --as-in-the-paper",
    "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis k-means --certify-passes 3",
    "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis-size auto --target-distance 0.01",
    "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --resume",
    must_converge=True,
    goes_on=True,
)
@dataclass(frozen=True)
class SparseJob(TrainingJob):
    """A sparse model to train: data, hyperparameters, method, basis and outputs.

    If `basis_size` and `gap` are None, those of the settings apply. If the data have fewer samples than the default
    basis size, the basis is all samples.
    """

    dataset: Annotated[str, DATASET]
    hyper: Annotated[str, HYPER]
    out: Annotated[str, MODEL_OUT]
    settings: Annotated[SparseSettings, Part()] = field(default_factory=SparseSettings)
    basis_size: Annotated[int | Literal["auto"] | None, BASIS_SIZE] = None
    largest_basis: Annotated[int | None, LARGEST_BASIS] = None
    given_basis: Annotated[str | None, GIVEN_BASIS] = None
    gap: Annotated[float | None, GAP] = None
    target_distance: Annotated[float | None, TARGET_DISTANCE] = None
    as_in_the_paper: Annotated[bool | tuple[str, ...], AS_IN_THE_PAPER] = False
    product_error: Annotated[Value, PASSES_ERROR] = "auto"

    @property
    def is_greedy(self) -> bool:
        """True if the basis is chosen greedily."""
        return self.given_basis is None and self.settings.basis_name == "greedy"

    @property
    def grows(self) -> bool:
        """True if the basis grows, in rounds or rungs; such a run has checkpoints and a plot."""
        return self.is_greedy or self.basis_size == "auto"

    @property
    def target(self) -> LadderTarget | None:
        """The target of a basis that grows by itself; None if the user gave the size."""
        if self.basis_size != "auto":
            return None
        return LadderTarget(self.target_distance, self._gap, self.largest_basis)

    @property
    def _gap(self) -> float | None:
        return self.settings.gap if self.gap is None else self.gap

    @property
    def solver_settings(self) -> dict[str, Any]:
        """The settings of a sized job that a checkpoint must share."""
        if self.target is None:
            return dict(identity(self.settings.greedy()))
        return LadderPlan.identity(self.settings, self.target)

    def check(self) -> None:
        """Raise the errors that can be found without data.

        Raises
        ------
        UsageError
            Options that contradict each other.
        InputError
            A value out of range.
        """
        if self.basis_size != "auto" and self.largest_basis is not None:
            raise UsageError("`largest_basis` needs a growing basis; give `basis_size` auto, or leave it out")
        if self.basis_size == "auto" and self.target_distance is None and self._gap is None:
            raise UsageError("`basis_size` auto grows until `target_distance` or `gap` is met; give one of them")
        if self.given_basis is not None:
            other = {"basis_size": self.basis_size, "basis": self.settings.basis, "gap": self._gap}
            for name, value in other.items():
                if value is not None:
                    raise UsageError(f"`given_basis` fixes the basis; leave out `{name}`, or `given_basis`")
        if not isinstance(self.product_error, str) and not self.settings.certify_passes:
            raise UsageError(
                "`product_error` is for the products of `certify_passes`; give `certify_passes`, or leave it out"
            )
        if self.basis_size == "auto" or self.target_distance is not None:
            self.settings.refuse_target()
        settled = self._settled(self.settings.basis_size)
        if self.is_greedy:
            settled.greedy()
        else:
            for name, option in options_of(SparseSettings).items():
                if option.group == GREEDY and getattr(self.settings, name) != option.default:
                    raise UsageError(f"`{name}` belongs to a greedy basis; choose `basis` greedy, or leave it out")
            if self.plot is not None and not self.grows:
                raise UsageError("`plot` needs a growing basis (`basis` greedy or `basis_size` auto); leave it out")

    def sized(self, n: int, given: int | None = None) -> SparseJob:
        """Return the job with its basis size for n samples, or with the size of a given basis.

        Raises
        ------
        InputError
            The requested basis is larger than the number of samples.
        """
        if given is not None:
            return replace(self, settings=self._settled(given))
        if self.basis_size == "auto":
            return replace(self, settings=self._settled(min(n, self.largest_basis or n)))
        size = self.settings.basis_size if self.basis_size is None else self.basis_size
        if size > n:
            if self.basis_size is not None or size != DEFAULTS["basis_size"]:
                raise InputError(f"got `basis_size` {size:,}, but there are only {n:,} samples. Give at most {n}")
            size = n
        return replace(self, settings=self._settled(size))

    def _settled(self, size: int) -> SparseSettings:
        """Return the settings with this size; the gap is None for a ladder, whose target contains it."""
        return replace(self.settings, basis_size=size, gap=self._gap if self.target is None else None)

    def identity(self, given_digest: str | None) -> dict[str, Any]:
        """Return the settings that, with data and hyperparameters, determine the model of a sized job."""
        settings = asdict(self.settings)
        if not self.settings.sparse_method.neighbours:
            # Models stored before neighbours existed lack these settings.
            for name in NEAR_SETTINGS:
                del settings[name]
        return {
            **settings,
            "gap": self._gap,
            "given_basis": given_digest,
            "target_distance": self.target_distance,
            "largest_basis": self.largest_basis,
            "auto": self.basis_size == "auto",
        }


INDEX = "index"


def read_given_basis(location: str, dataset: Dataset) -> IndexArray | FloatArray:
    """Read a given basis for a training set: sample numbers (m,), or standardised inputs (m, d).

    Raises `InputError`: the path does not exist, a number is missing or not finite, the features differ, or a sample
    number is out of range.
    """
    location = normalise_url(location)
    kind = recognise(location)
    if kind == SPARSE_MODEL_KIND:
        return _of_model(location, dataset)
    if kind == DATASET_KIND:
        seen = open_dataset(location).as_seen_by(dataset.feature_names, (), dataset.standardisation)
        return seen.inputs(0, seen.n_samples)
    if location.endswith(".json"):
        return _tuned(location, dataset)
    places = expand_locations(location)
    if places != [location]:
        # An access rule for the job's paths was checked for this path, not for the files that match a pattern.
        raise InputError(f"expected one file or store with a basis; got '{location}', a pattern or a folder of files")
    source = open_source(places, {})
    by_name, expected = {column.name: column for column in source.columns}, len(dataset.raw_feature_names)
    if set(dataset.feature_names) <= by_name.keys():
        raw = _values(source, [by_name[name] for name in dataset.feature_names])
        return np.asarray((raw - dataset.standardisation.input_mean) / dataset.standardisation.input_std)
    if INDEX in by_name or (len(source.positional) == 1 and expected > 1):
        return _indices(_values(source, [by_name.get(INDEX, source.positional[0])])[:, 0], location, dataset)
    if len(source.positional) != expected:
        raise InputError(
            f"the basis in '{source.url}' has {len(source.positional)} columns; expected the {expected} features "
            f"{', '.join(dataset.raw_feature_names)}, or one column of sample numbers"
        )
    return dataset.standardisation.inputs(_values(source, source.positional))


def digest(basis: IndexArray | FloatArray | None) -> str | None:
    """Return a digest of the numbers of a given basis."""
    return None if basis is None else hashlib.sha256(np.ascontiguousarray(basis).tobytes()).hexdigest()[:32]


def _tuned(location: str, dataset: Dataset) -> IndexArray:
    hyperparameters = read_hyperparameters(location, n_features=dataset.n_features, feature_names=dataset.feature_names)
    samples = (hyperparameters.sparse or {}).get("samples")
    if not samples:
        raise InputError(
            f"the hyperparameters in '{location}' name no basis: `dkgp tune --objective bound` writes one with them"
        )
    return _indices(np.asarray(samples, dtype=np.float64), location, dataset)


def _of_model(location: str, dataset: Dataset) -> IndexArray | FloatArray:
    record = open_sparse_model(location)
    if record.fingerprint == dataset.fingerprint:
        return record.prototypes if record.indices is None else np.asarray(record.indices, dtype=np.intp)
    if record.feature_names != dataset.feature_names:
        raise InputError(
            f"the sparse model '{location}' has the features {', '.join(record.feature_names)}; "
            f"'{dataset.url}' has {', '.join(dataset.feature_names)}"
        )
    source, target = record.standardisation, dataset.standardisation
    raw = record.prototypes * source.input_std + source.input_mean
    return np.asarray((raw - target.input_mean) / target.input_std)


def _values(source: Source, columns: Sequence[Column]) -> FloatArray:
    """Return all rows of some columns; `InputError` names the row of a value that is not finite."""
    parts = []
    for block in source.blocks(columns):
        bad = np.argwhere(~np.isfinite(block.values))
        if len(bad):
            row, column = bad[0]
            raise InputError(
                f"expected finite numbers in the basis; column '{columns[column].name}' has "
                f"{block.values[row, column]} in "
                f"{block.place(int(row))}"
            )
        parts.append(block.values)
    values = np.concatenate(parts) if parts else np.empty((0, len(columns)))
    if not len(values):
        raise InputError(f"the basis in '{source.url}' has no rows; expected at least one")
    return values


def _indices(values: FloatArray, location: str, dataset: Dataset) -> IndexArray:
    n, rows = dataset.n_samples, np.arange(len(values))
    wrong = rows[(values != np.floor(values)) | (values < 0) | (values >= n)]
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"row {row + 1} of the basis '{location}' is {values[row]:g}; expected sample numbers from 0 to {n - 1:,}"
        )
    return np.asarray(values, dtype=np.intp)


# In units of the targets' standard deviation. Predicting the targets' mean is about 1 from the exact mean.
SAYS_LITTLE = 0.5


@dataclass(frozen=True)
class _Plan:
    """Memory plan: projected memory (each rung plans its own), the coordinator's inputs, free and kept bytes."""

    sparse: Memory | None
    inputs_bytes: int
    free_bytes: int
    kept_bytes: int


class SparseRun(TrainingRun):
    """A run of `dkgp sparse`; `basis` is the given basis, as sample numbers or standardised inputs."""

    command, record = "sparse", SparseRecord
    job: SparseJob
    hyperparameters: Hyperparameters
    basis: IndexArray | FloatArray | None = None

    def check(self) -> None:
        """Refuse contradictory options."""
        self.job.check()
        super().check()

    def open(self) -> None:
        """Open data, hyperparameters and a given basis, and size the job for these data."""
        super().open()
        self._requested = self.job
        if self.job.given_basis is not None:
            self.basis = read_given_basis(self.job.given_basis, self.dataset)
        self.job = self.job.sized(self.dataset.n_samples, None if self.basis is None else len(self.basis))

    def prepare(self) -> None:
        """Refuse a bound on products that the kernel does not support."""
        super().prepare()
        self.product_error.require_kernel(self.hyperparameters.kernel)

    def tell(self) -> None:
        """Warn of labels, and note that the basis is all samples if the default size is larger."""
        warn_of_labels(self.dataset, self.hyperparameters, self.reporter)
        n, size = self.dataset.n_samples, self._requested.settings.basis_size
        if self.basis is None and self.job.basis_size is None and size > n:
            self.reporter.note(f"the basis may have all {n:,} samples, because the default of {size:,} is more")

    @property
    def identity(self) -> dict[str, Any]:
        """Data and hyperparameters."""
        noise = Noise(self.hyperparameters.noise_variance)
        return Problem(self.dataset, self.hyperparameters.kernel, noise).identity()

    def checkpoints(self) -> Checkpointing | None:
        """Return the checkpoints of a growing basis."""
        if not self.job.grows:
            return None
        return checkpointing_of(self.job, self.identity, self.job.solver_settings, self.reporter)

    def work(self, executor: BlockExecutor) -> tuple[TrainedSparse, _Plan]:
        """Plan the memory, fit and certify a basis, or a ladder of bases of increasing size."""
        plan = self._plan(executor)
        self.begin()
        executor.tiles = replace(executor.tiles, bytes=plan.kept_bytes)
        return self._judged(self._trained(executor, plan)), plan

    def _plan(self, executor: BlockExecutor) -> _Plan:
        """Project the memory and the coordinator's share of the inputs; `MemoryBudgetError` beyond the memory limit."""
        job, dataset, kernel = self.job, self.dataset, self.hyperparameters.kernel
        resident, budget = room(self)
        n, d, width = dataset.n_samples, dataset.n_features, feature_width(kernel)
        # Each rung of a ladder checks its own memory, so only the first rung must fit here.
        size = job.settings.basis_size if job.target is None else min(FIRST_RUNG, job.settings.basis_size)
        settings = replace(job.settings, basis_size=size)
        plan = settings.memory(n, d, dataset.n_targets, executor, job.cluster.cache_bytes, width)
        inputs = inputs_within(self, width, budget - resident - plan.coordinator_bytes)
        plan.require(budget, resident)
        # Later rungs of a ladder keep no more tiles than its first rung can use.
        plan = plan.with_kept(executor.tiles, budget - inputs, resident)
        free = budget - resident - inputs - (plan["kept_bytes"] if plan.shares_process else 0)
        return _Plan(plan if job.target is None else None, inputs, free, plan["kept_bytes"])

    def _trained(self, executor: BlockExecutor, plan: _Plan) -> TrainedSparse:
        job, hyperparameters = self.job, self.hyperparameters
        size = None if job.basis_size == "auto" and job.largest_basis is None else job.settings.basis_size
        with (
            RecordLog(job.log_json, resume=job.resume) as log,
            self.reporter.choice("sparse", size) as show,
            interruptible(self.reporter.warn) as interruption,
        ):

            def after_round(progress: GreedyProgress) -> None:
                show(progress)
                log.write({"iteration": progress.round, **to_json(progress)})

            def after_rung(rung: Rung) -> None:
                from dkgp.commands.reporting.layout import proven  # loads Rich, which help does not need

                gap = "" if rung.gap is None else f", gap {rung.gap:.3g}"
                text = f"{rung.size:,} basis samples: proven distance {proven(f'{rung.distance:.3g}', rung.distance)}"
                self.reporter.note(text, text + gap)
                if not job.is_greedy:
                    log.write({"iteration": rung.size, **to_json(rung)})

            context = RunContext(
                executor,
                plan.inputs_bytes,
                product_error=self.product_error,
                callback=after_round,
                within=show,
                checkpointing=self.checkpointing,
                interrupted=interruption,
            )
            kernel, noise = hyperparameters.kernel, Noise(hyperparameters.noise_variance)
            if job.target is None:
                return train_sparse(self.dataset, kernel, noise, context, job.settings, given=self.basis)
            return climb(
                SparseProblem.of(self.dataset, kernel, noise),
                context,
                job.settings,
                job.target,
                rung_callback=after_rung,
                memory_bytes=plan.free_bytes,
                cache_bytes=job.cluster.cache_bytes,
            )

    def _judged(self, trained: TrainedSparse) -> TrainedSparse:
        """Record the request, the bound in the targets' units, and whether it is met, unless a ladder did."""
        job, bound = self.job, trained.certificate.rms_bound
        raw = bound * self.dataset.standardisation.target_std
        summary = {
            **trained.summary,
            "target_names": list(self.dataset.target_names),
            "rms_bound_raw": raw.tolist(),
            "settings": job.identity(digest(self.basis)),
        }
        worst, target = float(np.max(bound)), job.target_distance
        if job.target is None and target is not None and summary["converged"]:
            met = worst <= target
            summary["converged"] = met
            summary["reason"] = f"proven distance {worst:.3g} {'<=' if met else '>'} {target:.3g}: {summary['reason']}"
            if not met:
                summary["advice"] = (
                    "a larger `basis_size` brings the mean closer to the exact one; more `certify_passes` tighten the "
                    "proof"
                )
        return replace(trained, summary=summary)

    def save(self, trained: tuple[TrainedSparse, _Plan], measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model."""
        model, plan = trained
        model = replace(model, summary={**model.summary, **measured})
        save_sparse(model, self.job.out, self.dataset, overwrite=overwrite)
        history = [] if model.greedy is None else to_json(model.greedy.history)
        planned = None if plan.sparse is None else plan.sparse.to_json()
        return Outcome(model, model.summary, model.certificate.to_json(), history, planned)

    def difference(self, model: SparseRecord, converged: bool) -> str | None:
        """Return the name of a setting in which the stored model's run differs."""
        made = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
        wanted = {**self.identity, **self.job.identity(digest(self.basis))}
        return difference({**made, **model.summary["settings"]}, wanted)

    def draw(self, outcome: Outcome) -> None:
        """Plot the growth of the basis."""
        summary = outcome.summary
        title = f"{summary['method']}: n = {summary['n']:,}, d = {summary['d']}, m = {summary['basis_size']:,}"
        assert self.job.plot is not None
        plot_basis(self.job.plot, outcome.history, summary, outcome.certificate or {}, title=title)

    def warnings(self, outcome: Outcome) -> list[str]:
        """Return the warnings about the model."""
        summary, messages = outcome.summary, []
        if not summary["converged"]:
            advice = f"; {summary['advice']}" if summary["advice"] else ""
            messages.append(f"the requested distance is not proven: {summary['reason']}{advice}")
        if summary["method"] == "sr":
            messages.append(
                "the variances of `method` sr are too small: they go to zero far from the basis. The interval of the "
                "exact variance is valid. `method` dtc has the same mean and better variances"
            )
        worst = max(summary["rms_bound"])
        if worst >= SAYS_LITTLE:
            messages.append(
                f"the proven bound on the distance from the exact mean is {worst:.2g} standard deviations of the "
                "targets, which says little: a constant prediction has an error of about 1. The sparse mean may be "
                "much closer than proven; use `certify_passes` or a larger `basis_size` for a tighter bound"
            )
        return messages
