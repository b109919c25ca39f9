"""Settings, memory, steps and result of a refinement of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.codec import rule
from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.memory import Memory, Part
from dkgp.models.noise import Noise
from dkgp.models.refinement.estimates import LogLikelihood
from dkgp.models.refinement.validation import HeldOutScore, held_out_samples, variance_batch_bytes
from dkgp.models.solver_choice import factor_for
from dkgp.models.variance.nystrom import factor_bytes
from dkgp.operators.blocked import coordinator_input_bytes_needed
from dkgp.operators.contract_tasks import tiles_bytes
from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.operators.product_error import PRODUCT_ERROR, ProductMemory, Value
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import Option, byte_count
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning

STEPS = Option(
    help="Largest number of steps. Each step solves one linear system with all right-hand sides.", metavar="N", least=1
)
PROBES = Option(
    help="Random vectors for each gradient; more vectors give smaller errors.",
    metavar="S",
    least=2,
    shown="8; 4 for 200,000 samples or more",
)
TOLERANCE = Option(
    help="Relative residual to which the linear systems of a step are solved.",
    spellings=("--refine-tol",),
    metavar="SHARE",
    above=0,
)
MAX_PASSES = Option(
    help="Largest number of products with the whole kernel matrix per step.", metavar="PASSES", above=0, shown="100"
)
HALO = Option(
    help="Samples that each leaf of the preconditioner is conditioned on. 0: only a low-rank factor.  [default: "
    "automatic]",
    metavar="S",
    least=0,
)
RANK = Option(help="Rank of the preconditioner's low-rank factor.  [default: automatic]", metavar="R", least=0)
MEMORY = Option(
    help="Memory of the preconditioner, in all workers together.",
    type=byte_count,
    spellings=("--refine-memory",),
    metavar="SIZE",
    least=1,
    shown="1GiB",
)
HELD_OUT = Option(
    help="Largest number of held-out samples (at most a tenth of all). 0: keep the refined values without validation.",
    spellings=("--refine-holdout",),
    metavar="N",
    least=0,
)

EVIDENCE = Option(
    help="Estimate the log marginal likelihood of all training samples at the final values, with its standard error."
)
SOLVE_ERROR = replace(
    PRODUCT_ERROR,
    help="Allowed error of each entry of a product with the kernel matrix. E: a proven error of at most E (for "
    "kernels that fall with the distance, and few features). none: evaluate every kernel entry. auto: the faster "
    "of these by a forecast.",
    spellings=("--product-error",),
    group=None,
)


# Four probes at twice the samples err as much as eight, beside the second derivatives.
FEWER_PROBES_FROM = 200_000


@documented
@dataclass(frozen=True)
class RefineSettings:
    """Settings of a refinement of hyperparameters.

    At most a tenth of all samples is held out. Without held-out samples the refined values are kept, not validated. If
    neither halo nor rank of the preconditioner (`FactorPreconditioning`) is set, a probe of the problem chooses both
    within `memory_bytes`.
    """

    steps: Annotated[int, STEPS] = 15
    probes: Annotated[int | None, PROBES] = None
    tolerance: Annotated[float, TOLERANCE] = 0.01
    max_passes: Annotated[float, MAX_PASSES] = 100.0
    halo: Annotated[int | None, HALO] = None
    rank: Annotated[int | None, RANK] = None
    memory_bytes: Annotated[int, MEMORY] = 1024**3
    held_out: Annotated[int, HELD_OUT] = 500
    product_error: Annotated[Value, SOLVE_ERROR] = "auto"
    evidence: Annotated[bool, EVIDENCE] = False
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        self.preconditioner()
        if self.tolerance >= 1.0:
            raise InputError(f"`tolerance` of a refinement is a relative residual, below 1; got {self.tolerance!r}")

    def probes_for(self, n: int) -> int:
        """Return the number of probes for gradients on so many samples."""
        return self.probes or (8 if n < FEWER_PROBES_FROM else 4)

    def decided(self, dataset: Dataset, start: Hyperparameters) -> RefineSettings:
        """Return the settings with halo and rank chosen for the starting values, if neither is set."""
        if self.halo is not None or self.rank is not None:
            return self
        t = dataset.n_targets + self.probes_for(dataset.n_samples)
        preconditioner = factor_for(
            dataset,
            start.kernel,
            Noise(start.noise_variance),
            t,
            tolerance=self.tolerance,
            memory_bytes=self.memory_bytes,
            seed=self.seed,
        )
        resolved = preconditioner.resolved(dataset.n_samples, dataset.n_features, t)
        return replace(self, halo=int(resolved.halo), rank=int(resolved.rank))

    def preconditioner(self) -> FactorPreconditioning:
        """Return the settings of the solves' preconditioner."""
        return FactorPreconditioning(
            "auto" if self.halo is None else self.halo,
            rank="auto" if self.rank is None else self.rank,
            memory_bytes=self.memory_bytes,
            seed=self.seed,
        )

    def without_landmarks(self) -> FactorPreconditioning:
        """Return the settings of the factor whose determinant is known."""
        return FactorPreconditioning(self.halo or "auto", rank=0, memory_bytes=self.memory_bytes, seed=self.seed)

    def landmarks(self) -> FactorPreconditioning:
        """Return the settings of the landmarks that bound held-out samples' variances."""
        return FactorPreconditioning(0, memory_bytes=self.memory_bytes, seed=self.seed)


@dataclass(frozen=True)
class RefineStep:
    """One evaluation of the gradient; number 0 is at the start, on all samples or on a share of them.

    Dictionaries are by parameter name. The log likelihood's gain since the start is estimated from gradients.
    """

    step: int
    steps: int  # most steps
    accepted: bool  # whether the search continued from here
    gradient_norm: float  # norm over the free parameters, on a logarithmic scale, in nats
    error_norm: float  # norm of the gradient's errors
    significance: float  # root mean square of the components in units of their errors
    solver_share: float  # largest share that the solver's error has in a component's
    gain: float
    gain_error: float
    noise_variance: float
    values: dict[str, float] = field(repr=False)
    gradient: dict[str, float] = field(repr=False)
    error: dict[str, float] = field(repr=False)
    column_passes: float = 0.0
    contractions: int = 0  # passes over the kernel's derivatives
    relative_residual: float = math.nan
    tolerance: float = math.nan  # relative residual that the solve aimed at
    seconds: float = 0.0
    samples: int = 0  # samples of the gradient

    @property
    def plain(self) -> str:
        """One line for users of any field."""
        taken = "" if self.accepted else ", undone"
        return (
            f"refine step {self.step} of {self.steps}: gain of log likelihood {self.gain:+.1f} (standard error "
            f"{self.gain_error:.2g}), {self.seconds:.1f} s{taken}"
        )

    def __str__(self) -> str:
        """One line for users who know optimisers."""
        taken = "" if self.accepted else ", undone"
        return (
            f"refine step {self.step} of {self.steps}: |gradient| {self.gradient_norm:.3g}, its error "
            f"{self.error_norm:.2g}, s2 {self.noise_variance:.4g}, log likelihood {self.gain:+.1f} (error "
            f"{self.gain_error:.2g}), {self.column_passes:.0f} passes, {self.seconds:.1f} s{taken}"
        )


StepCallback: TypeAlias = Callable[[RefineStep], None]


@dataclass(frozen=True)
class Refinement:
    """The result of a refinement.

    Column passes are those of all solves, including validation.
    """

    # The better ones: refined, or the initial values.
    hyperparameters: Hyperparameters = field(metadata=rule(stored=False))
    kept: str  # "refined" or "start"
    reason: str  # why the search stopped
    verdict: str  # the outcome, in a sentence
    history: list[RefineStep]
    before: HeldOutScore | None  # score of the held-out samples with the starting values
    after: HeldOutScore | None  # and with the refined values
    settings: RefineSettings
    n_samples: int
    n_held_out: int
    column_passes: float
    contractions: int
    seconds: float
    interrupted: bool = False
    evidence: LogLikelihood | None = None  # at the kept values, if requested


# (n, t) arrays of a solve: right-hand sides, start, solutions of the step before, alpha, g, P, Q, M^-1 r, an earlier
# solution, a pending product in two halves, and a temporary one.
ARRAYS_OF_A_SOLVE = 12


def product_bytes(memory: ProductMemory | None) -> int:
    """Return the bytes of products within a bound: the operators of a step and of a shift both keep plans."""
    return 0 if memory is None else 2 * memory.kept_bytes + memory.work_bytes


def plan_refinement(
    n: int,
    d: int,
    p: int,
    settings: RefineSettings,
    executor: BlockExecutor,
    *,
    resident_bytes: int,
    holds_inputs: bool,
    cache_bytes: int,
) -> Memory:
    """Project the peak of a refinement.

    `resident_bytes` are held by this process now, `holds_inputs`: the coordinator holds all inputs, `cache_bytes` is
    the budget of a worker's cache. Products within a bound add `product_bytes` to the part "products_bytes".

    Raises `InputError` for a factor that does not fit the memory that the settings give the preconditioner.
    """
    factor = settings.preconditioner().resolved(n, d).memory(n, d)
    rank = int(settings.landmarks().resolved(n, d).rank)
    t, threads = p + settings.probes_for(n), executor.threads_per_process
    held_out = held_out_samples(n, settings.held_out)
    contraction = 2 * t + settings.probes_for(n)
    landmarks = max(factor.own_bytes, 8 * rank * (4 * rank + samples_drawn_from(rank)) if held_out else 0)
    factors = factor.factor_bytes + factor.cached_bytes + (factor_bytes(n, rank, "double") if held_out else 0)
    batches = max(tiles_bytes(threads), variance_batch_bytes(n, held_out, threads) if held_out else 0)
    vectors, inputs = 8 * n * (ARRAYS_OF_A_SOLVE * t + contraction + p), coordinator_input_bytes_needed(n, d)
    smaller = "(smaller with `refine_halo`, `refine_rank` and `refine_memory`)"
    parts = {
        "resident_bytes": Part(resident_bytes),
        "vectors_bytes": Part(vectors, words="vectors {} (fewer with a smaller `refine_probes`)"),
        "inputs_bytes": Part(inputs if holds_inputs else 0, words="inputs {}"),
        "landmarks_bytes": Part(landmarks, words=f"landmarks {{}} {smaller}"),
        "factor_bytes": Part(factors, "worker", f"factors {{}} {smaller}"),
        "batch_bytes": Part(batches, "worker", "batches {} (none with `refine_holdout` 0)"),
        "cache_bytes": Part(min(cache_bytes, 12 * n * (d + 1) + 8 * n * d), "worker", "workers' inputs {}"),
        "tiles_bytes": Part(0, "worker"),
        "products_bytes": Part(0, "worker"),
    }
    return Memory("refining", parts, executor.shares_memory, process="this process")
