"""Training of a sparse model: choose the basis, fit, certify; each step says in the summary what it took and proved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.types import Progress, ProgressCallback
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import Kernel, fold_white
from dkgp.models.sparse.bases import BLIND_BASES, blind_basis, given_basis
from dkgp.models.sparse.certificate import SparseCertificate, certify
from dkgp.models.sparse.errors import SampleErrors
from dkgp.models.sparse.fit import Basis, SparseFit, fit_sparse, require_range
from dkgp.models.sparse.memory import SparseMemory, plan_sparse
from dkgp.models.sparse.methods import METHODS, SparseMethod, method_named
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.risk import descent_bound, subset_bound
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray, Noise
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import Group, Option
from dkgp.solvers import Checkpointing, GreedyBlockCoordinateDescent, MaxPasses, solve
from dkgp.solvers.greedy_basis.engine import choose_greedily
from dkgp.solvers.greedy_basis.settings import CANDIDATES, GreedyBasis, GreedyProgress, GreedySettings
from dkgp.solvers.stopping import StopReason

__all__ = ["GREEDY", "SparseSettings", "TrainedSparse", "noise_by_sample", "summary_of", "train_sparse"]

# Unless a user says otherwise: so many rounds, whatever m, and of each draw so many that are scored after refitting.
ROUNDS, SCREEN = 50, 2
# Of a gap that was met by estimate: what roundings may add to it.
GAP_ROUNDING = 1e-6
# Of matching pursuit: earlier candidates that are scored again.
KEPT = 59


# Of a basis that is chosen greedily.
GREEDY = Group("Options of a greedy basis")


BY_METHOD = ", ".join(
    f"{basis} for {', '.join(name for name, method in METHODS.items() if method.basis == basis)}"
    for basis in dict.fromkeys(method.basis for method in METHODS.values())
)
METHOD = Option(
    help="; ".join(f"{name}: {method.help}" for name, method in METHODS.items()) + ".", choices=tuple(METHODS)
)
BASIS = Option(
    help=f"How basis samples are chosen; greedy alone looks at the targets.  [default: {BY_METHOD}]",
    choices=(*BLIND_BASES, "greedy"),
)
CANDIDATE_COUNT = Option(help="Drawn at random for each greedy choice.", least=1, group=GREEDY)
PER_ROUND = Option(
    help="Choices by the same weights, before they are fitted again; 1 is the papers'.  [default: a fiftieth of the "
    "basis]",
    least=1,
    group=GREEDY,
)
EXHAUSTIVE = Option(help="Score every sample at every choice; for small data.", group=GREEDY)
SCREENED = Option(
    help="Score no more than K of each draw in full, the best by a cheaper score; 0: all.  [default: 2, all of sggp "
    "with one choice a round]",
    metavar="K",
    least=0,
    group=GREEDY,
)
SCORE_ROWS = Option(
    help="Screen on a fresh random sample of so many rows.  [default: all]", metavar="ROWS", least=1, group=GREEDY
)
CERTIFY_PASSES = Option(
    help="Spend passes of block coordinate descent over the kernel's columns on a tighter certificate; of "
    "`basis_size` auto, products on it at most.",
    metavar="PASSES",
    least=0,
)


@documented
@dataclass(frozen=True)
class SparseSettings:
    """Settings of a sparse model: method, basis (the method's own by default), and what is spent on its certificate.

    The basis has `basis_size` samples at most, 1,000 by default; a greedy choice ends at the duality gap `gap`, where
    that is given. With several choices a round, the best two of each draw are scored after refitting by default.
    """

    method: Annotated[str, METHOD] = "vfe"
    basis_size: int = 1000
    basis: Annotated[str | None, BASIS] = None
    gap: float | None = None
    candidates: Annotated[int, CANDIDATE_COUNT] = CANDIDATES
    per_round: Annotated[int | None, PER_ROUND] = None
    exhaustive: Annotated[bool, EXHAUSTIVE] = False
    screen: Annotated[int | None, SCREENED] = None
    score_rows: Annotated[int | None, SCORE_ROWS] = None
    certify_passes: Annotated[float, CERTIFY_PASSES] = 0.0
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.gap is not None and self.chosen_basis != "greedy":
            raise InputError(
                f"a duality gap is reached by a greedy basis; this one is {self.chosen_basis}. Choose `basis` greedy, "
                "or leave out the gap"
            )

    @property
    def sparse_method(self) -> SparseMethod:
        """The method."""
        return method_named(self.method)

    @property
    def chosen_basis(self) -> str:
        """The basis' name, the method's own unless a user said otherwise."""
        return self.basis or self.sparse_method.basis

    def greedy(self) -> GreedySettings:
        """Settings of the greedy choice: by the risk after refitting, or for matching pursuit with the others held."""
        pursuit = self.method == "mpgp"
        per_round = self.per_round or max(1, self.basis_size // ROUNDS)
        screened = per_round > 1 and not (pursuit or self.exhaustive)
        return GreedySettings(
            self.basis_size,
            "single" if pursuit else "refit",
            self.candidates,
            per_round,
            self.exhaustive,
            KEPT if pursuit else 0,
            (SCREEN if screened else 0) if self.screen is None else self.screen,
            self.score_rows,
            self.gap,
            seed=self.seed,
        )

    def memory(self, n: int, d: int, p: int, executor: BlockExecutor, cache_bytes: int, width: int) -> SparseMemory:
        """Project what training takes."""
        greedy = self.greedy() if self.chosen_basis == "greedy" else None
        pool = 0
        if greedy is not None:
            pool = n if greedy.exhaustive else min(n, greedy.per_round * (greedy.candidates + greedy.kept))
        return plan_sparse(
            n,
            d,
            min(self.basis_size, n),
            p,
            threads=executor.threads_per_process,
            shares_process=executor.shares_memory,
            cache_bytes=cache_bytes,
            width=width,
            candidates=pool,
            greedy_factors=0 if greedy is None else 1 + greedy.tracks_gap,
        )


@dataclass(frozen=True)
class TrainedSparse:
    """A sparse model, what is proven of it, and how it came about.

    Attributes
    ----------
    model : SparseModel
    noise_variance : float
        White noise that was part of the kernel included; with noise by sample, that of one whose `relative_noise` is 1.
    basis : Basis
    certificate : SparseCertificate
    greedy : GreedyBasis or None
        The choice, where it was greedy.
    summary : dict
        n, d, p, method, basis, basis_size, seconds by part, kernel_evaluations, converged, reason, advice, passes,
        decrement, excess, rms_bound, best, gap, elbo, evidence_upper, divergence.
    basis_noise : (m,) float64 or None
        The basis samples' own, where the noise is by sample and the basis is of samples.
    """

    model: SparseModel
    noise_variance: float
    basis: Basis
    certificate: SparseCertificate
    greedy: GreedyBasis | None
    summary: dict[str, Any] = field(default_factory=dict)
    basis_noise: FloatArray | None = None

    @property
    def converged(self) -> bool:
        """True unless a gap or a distance was asked for and not met."""
        return bool(self.summary["converged"])


def train_sparse(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float,
    executor: BlockExecutor,
    settings: SparseSettings,
    *,
    given: IndexArray | FloatArray | None = None,
    relative_noise: FloatArray | None = None,
    callback: Callable[[GreedyProgress], None] | None = None,
    within: ProgressCallback | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
) -> TrainedSparse:
    """Train a sparse model of a dataset.

    Parameters
    ----------
    dataset : Dataset
        Standardised inputs and targets are read from it by whoever needs them.
    kernel : Kernel
        White noise in it is folded into the noise variance.
    noise_variance : float
        s2, on the standardised scale.
    executor : BlockExecutor
    settings : SparseSettings
    given : (m,) int or (m, d) float64, optional
        A basis of the user's own, samples or standardised inputs.
    relative_noise : (n,) float64, optional
        Noise by sample: what s2 is multiplied by for each; a sample of 1 / k counts as much as k samples.
    callback : callable, optional
        Called after every round of a greedy choice.
    within, checkpointing, interrupted
        See `dkgp.solvers.solve`; checkpoints are of the greedy choice.
    coordinator_input_bytes : int
        See `BlockedKernelOperator`.

    Raises
    ------
    InputError
        No targets, a basis that is larger than the data, or one that is none.
    NumericalError
        Rounding exceeds the noise variance: nothing is added to make it fit.
    InterruptedRunError
        As was wished.
    """
    if dataset.n_targets == 0:
        raise InputError(
            f"'{dataset.url}' has no targets; training needs at least one. Ingest the data again and name it"
        )
    kernel, noise_variance = fold_white(kernel, noise_variance)
    targets, timings, began = dataset.all_targets(), {}, time.perf_counter()

    def lap(part: str) -> None:
        nonlocal began
        timings[part], began = round(time.perf_counter() - began, 3), time.perf_counter()

    options = {"coordinator_input_bytes": coordinator_input_bytes}
    each, checkpointing = noise_by_sample(noise_variance, relative_noise, dataset.n_samples, checkpointing)
    with BlockedKernelOperator(kernel, each, dataset, executor, **options) as operator:

        def heed(progress: Progress) -> None:
            if interrupted is not None and interrupted():
                where = None if greedy is None or checkpointing is None else checkpointing.store.url
                kept = "nothing was saved" if where is None else f"the basis is saved in {where}"
                raise InterruptedRunError(f"interrupted in the {progress.phase}; {kept}", where)

        greedy: GreedyBasis | None = None
        with operator.watched(heed, within):
            require_range(operator, targets)
            basis, greedy = _basis(operator, targets, settings, given, callback, within, checkpointing, interrupted)
            lap("choice")
            system = None if greedy is None else greedy.system
            fit = fit_sparse(operator, targets, basis, settings.sparse_method, system)
            greedy, system = None if greedy is None else replace(greedy, system=None), None
            lap("fit")
            certificate = certify(operator, fit, targets, subset=basis.indices)
            lap("certificate")
        if greedy is not None and len(greedy.dual):
            # As large as the basis, and chosen for this.
            certificate = certificate.with_bound("subset", subset_bound(operator, greedy.dual, targets))
        if settings.certify_passes:
            certificate = certify_by_descent(
                operator, fit, certificate, targets, settings.certify_passes, within=within, interrupted=interrupted
            )
            lap("passes")
        entries = operator.kernel_evaluations
    if greedy is not None and settings.gap is not None:
        greedy = replace(greedy, reason=_judged(greedy.reason, certificate, settings.gap, len(basis.inputs)))
    summary = summary_of(dataset, settings, given is not None, fit, basis, greedy, certificate)
    summary |= {"kernel_evaluations": entries, "seconds": round(sum(timings.values()), 3), "seconds_by_part": timings}
    return TrainedSparse(fit.model, noise_variance, basis, certificate, greedy, summary, basis.noise_of(each))


def noise_by_sample(
    noise_variance: float, relative: FloatArray | None, n: int, checkpointing: Checkpointing | None = None
) -> tuple[Noise, Checkpointing | None]:
    """The noise of n samples, s2 times what each has of it, and checkpoints that belong to it.

    Raises
    ------
    InputError
        Another number of samples, or values that are not positive and finite.
    """
    if relative is None:
        return noise_variance, checkpointing
    values = np.asarray(relative, dtype=np.float64)
    if values.shape != (n,):
        raise InputError(f"`relative_noise` has shape {values.shape}; expected ({n},), a value for each sample")
    usable = np.isfinite(values) & (values > 0.0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise InputError(f"`relative_noise` must be positive and finite; got {values[row]} for sample {row}")
    each = noise_variance * values
    if checkpointing is not None:
        identity = {**checkpointing.identity, "noise by sample": sha256(each.tobytes()).hexdigest()}
        checkpointing = replace(checkpointing, identity=identity)
    return each, checkpointing


def certify_by_descent(
    operator: BlockedKernelOperator,
    fit: SparseFit,
    certificate: SparseCertificate,
    targets: FloatArray,
    passes: float,
    *,
    within: ProgressCallback | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> SparseCertificate:
    """Tighten a certificate by column passes of block coordinate descent from zero, and a float64 product."""
    solution = solve(
        operator,
        targets,
        solver=GreedyBlockCoordinateDescent(),
        stopping=MaxPasses(passes),
        within=within,
        interrupted=interrupted,
    )
    errors = SampleErrors.of(operator, fit.model.prototypes)
    return certificate.with_bound("descent", descent_bound(operator, solution, targets, errors))


def _basis(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    settings: SparseSettings,
    given: IndexArray | FloatArray | None,
    callback: Callable[[GreedyProgress], None] | None,
    within: ProgressCallback | None,
    checkpointing: Checkpointing | None,
    interrupted: Callable[[], bool] | None,
) -> tuple[Basis, GreedyBasis | None]:
    if given is not None:
        return given_basis(operator, given), None
    if settings.chosen_basis != "greedy":
        return blind_basis(operator, settings.chosen_basis, settings.basis_size, settings.seed), None
    found = choose_greedily(
        operator,
        targets,
        settings.greedy(),
        callback=callback,
        within=within,
        checkpointing=checkpointing,
        interrupted=interrupted,
    )
    return Basis(operator.inputs(found.indices), found.indices), found


def _judged(reason: StopReason, certificate: SparseCertificate, gap: float, size: int) -> StopReason:
    """The reason to stop at a gap by what is proven, of all targets together; choosing, it was estimated."""
    proven = certificate.total_gap
    if proven <= gap * (1.0 + GAP_ROUNDING):
        return StopReason("gap", True, f"duality gap {proven:.3g} <= {gap:.3g} is proven with {size:,} basis samples")
    if not reason.converged:
        return reason
    told = f"{reason.message} by the choice's sums; {proven:.3g} is proven of the fit"
    return StopReason("gap", False, told, "ask for a smaller gap, or raise the noise variance")


def _told(greedy: GreedyBasis | None, asked: int | None, size: int) -> str:
    """The reason in words, and why a basis is smaller than it was asked to be."""
    if greedy is not None:
        return greedy.reason.message
    fewer = asked is not None and size < asked
    return f"{size:,} basis samples" + (
        f": others add nothing that float64 could tell; {asked:,} were asked for" if fewer else ""
    )


def summary_of(
    dataset: Dataset,
    settings: SparseSettings,
    given: bool,
    fit: SparseFit,
    basis: Basis,
    greedy: GreedyBasis | None,
    certificate: SparseCertificate,
) -> dict[str, Any]:
    """The run and its proofs, in plain JSON types."""
    found = fit.regressors
    return {
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "p": dataset.n_targets,
        "method": settings.method,
        "basis": "given" if given else settings.chosen_basis,
        "basis_size": len(basis.inputs),
        "converged": greedy is None or greedy.reason.converged,
        "reason": _told(greedy, None if given else settings.basis_size, len(basis.inputs)),
        "advice": "" if greedy is None else greedy.reason.advice,
        "rounds": 0 if greedy is None else greedy.history[-1].round if greedy.history else 0,
        "passes": 0 if found is None else found.passes,
        "decrement": None if found is None else found.decrement.tolist(),
        "excess": certificate.excess.tolist(),
        "rms_bound": certificate.rms_bound.tolist(),
        "best": list(certificate.best),
        "gap": [value if np.isfinite(value) else None for value in certificate.gap.tolist()],
        "elbo": None if certificate.evidence is None else certificate.evidence.lower,
        "evidence_upper": certificate.evidence_upper,
        "divergence": certificate.divergence,
        **({} if certificate.assumes is None else {"assumes": certificate.assumes}),
    }
