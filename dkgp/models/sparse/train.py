"""Training of a sparse model: choose the basis, fit and certify; the summary reports cost and proof of each step.

`SparseProblem` checks the samples, kernel and noise; `TrainedSparse` is the result. A ladder of growing bases
(`dkgp.models.sparse.ladder`) shares both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.sparse.bases import blind_basis, given_basis
from dkgp.models.sparse.bounds import SampleErrors, descent_bound, subset_bound
from dkgp.models.sparse.certificate import SparseCertificate, certify
from dkgp.models.sparse.model import Basis, SparseFit, SparseModel, fit_sparse, require_range
from dkgp.models.sparse.near import FittedNear, Near, fit_near
from dkgp.models.sparse.settings import SparseSettings
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.progress import Progress
from dkgp.solvers import GreedyBlockCoordinateDescent, MaxPasses, Solution, solve
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import interrupted
from dkgp.solvers.greedy_basis import GreedyBasis, choose_greedily
from dkgp.solvers.stopping import StopReason


@dataclass(frozen=True)
class TrainedSparse:
    """A sparse model with its certificate, its basis and its summary."""

    model: SparseModel
    # White noise of the kernel included; with noise by sample, that of new observations
    noise_variance: float
    basis: Basis
    certificate: SparseCertificate
    greedy: GreedyBasis | None  # the choice, where it was greedy
    # n, d, p, method, basis, basis_size, seconds by part, kernel_evaluations, converged, reason, advice, passes,
    # decrement, excess, rms_bound, best, gap, elbo, evidence_upper, divergence
    summary: dict[str, Any] = field(default_factory=dict)
    basis_noise: FloatArray | None = None  # (m,): of the basis samples, where the noise is by sample
    near: Near | None = None  # of a model with neighbours

    @property
    def converged(self) -> bool:
        """True unless a gap or a distance was asked for and not met."""
        return bool(self.summary["converged"])


@dataclass(frozen=True, eq=False)
class SparseProblem(Problem):
    """A regression problem that a sparse model is trained on; new observations have the noise s2."""

    def context(self, context: RunContext | BlockExecutor) -> RunContext:
        """The context, its checkpoints those of samples of this noise."""
        context = RunContext.of(context)
        noise = self.noise.diagonal
        if context.checkpointing is None or not isinstance(noise, np.ndarray):
            return context
        identity = {**context.checkpointing.identity, "noise by sample": sha256(noise.tobytes()).hexdigest()}
        return replace(context, checkpointing=replace(context.checkpointing, identity=identity))

    def certify(
        self, operator: BlockedKernelOperator, fit: SparseFit, basis: Basis, greedy: GreedyBasis | None
    ) -> SparseCertificate:
        """Certify a fit, with the bounds that its basis samples, and those chosen for the dual, prove."""
        certificate = certify(operator, fit, self.targets, subset=basis.indices)
        if greedy is None or not len(greedy.dual):
            return certificate
        # As large as the basis, and chosen for this.
        return certificate.with_bound("subset", subset_bound(operator, greedy.dual, self.targets))

    def with_descent(
        self, operator: BlockedKernelOperator, certificate: SparseCertificate, model: SparseModel, solution: Solution
    ) -> SparseCertificate:
        """A model's certificate, with the bound that a solve of the exact system proves."""
        errors = SampleErrors.of(operator, model.prototypes)
        return certificate.with_bound("descent", descent_bound(operator, solution, self.targets, errors))

    def trained(
        self,
        settings: SparseSettings,
        fit: SparseFit,
        basis: Basis,
        greedy: GreedyBasis | None,
        certificate: SparseCertificate,
        record: dict[str, Any],
        near: Near | None = None,
    ) -> TrainedSparse:
        """Build the trained model; `record` overrides its summary, in plain JSON types."""
        regressors, reason = fit.regressors, _reason(settings, basis, greedy)
        summary = {
            "n": self.dataset.n_samples,
            "d": self.dataset.n_features,
            "p": self.dataset.n_targets,
            "method": settings.method,
            "basis": settings.basis_name,
            "basis_size": len(basis.inputs),
            **reason.summary(),
            "rounds": greedy.history[-1].round if greedy is not None and greedy.history else 0,
            "passes": 0 if regressors is None else regressors.passes,
            "decrement": None if regressors is None else regressors.decrement.tolist(),
            **certificate.summary(),
            **record,
            **({} if self.noise.is_common else {"noise_by_sample": True}),
        }
        basis_noise = basis.noise_of(self.noise.diagonal)
        return TrainedSparse(fit.model, self.noise.common, basis, certificate, greedy, summary, basis_noise, near)


def _reason(settings: SparseSettings, basis: Basis, greedy: GreedyBasis | None) -> StopReason:
    """The reason to stop, and why a basis is smaller than it was asked to be."""
    if greedy is not None:
        return greedy.reason
    size, wanted_size = len(basis.inputs), settings.basis_size
    fewer = f" of at most {wanted_size:,}: further samples change nothing in float64" if size < wanted_size else ""
    return StopReason("size", True, f"{size:,} basis samples{fewer}")


# Allowed rounding of a gap that was met by estimate.
GAP_ROUNDING = 1e-6


def train_sparse(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float | Noise,
    context: RunContext | BlockExecutor,
    settings: SparseSettings,
    *,
    given: IndexArray | FloatArray | None = None,
    relative_noise: FloatArray | None = None,
    sample_noise: FloatArray | None = None,
) -> TrainedSparse:
    """Train a sparse model of a dataset.

    Parameters
    ----------
    dataset : Dataset
        Standardised inputs and targets; workers read their own rows.
    kernel : Kernel
        White noise in it is folded into the noise variance.
    noise_variance : float or Noise
        s2, on the standardised scale; or the noise of all samples as one value, the next two included.
    context : RunContext or BlockExecutor
        Who computes, and who watches; rounds and checkpoints are those of the greedy choice.
    given : (m,) int or (m, d) float64, optional
        A basis of the user's own, samples or standardised inputs.
    relative_noise : (n,) float64, optional
        Noise by sample: the multiple of s2 that each has; a sample of 1 / k counts as much as k samples.
    sample_noise : (n,) float64, optional
        Known noise variances, standardised, added to that; by default those that the data set has.

    Raises
    ------
    InputError
        No targets, a basis that is larger than the data, or a given one that is not valid.
    NumericalError
        Rounding exceeds the noise variance: nothing is added to make it fit.
    InterruptedRunError
        The context asked for the end; a greedy choice is saved where there are checkpoints.
    """
    problem = SparseProblem.of(dataset, kernel, Noise.of(noise_variance, sample_noise, relative_noise))
    run, targets, seconds = problem.context(context), problem.targets, Clock()
    with problem.operator(run) as operator:
        greedy: GreedyBasis | None = None

        def heed(progress: Progress) -> None:
            if run.interrupted is not None and run.interrupted():
                url = None if greedy is None or run.checkpointing is None else run.checkpointing.store.url
                raise interrupted(f"in the {progress.phase}", url, "the basis is")

        with operator.watched(run.within, heed):
            require_range(operator, targets)
            with seconds.measured("choice"):
                basis, greedy = _choose(operator, targets, settings, given, run)
            with seconds.measured("fit"):
                system = None if greedy is None else greedy.system
                fit = fit_sparse(operator, targets, basis, settings.sparse_method, system)
                greedy, system = None if greedy is None else replace(greedy, system=None), None
            with seconds.measured("certificate"):
                certificate = problem.certify(operator, fit, basis, greedy)
        if settings.certify_passes:
            with seconds.measured("passes"):
                solution = solve(
                    operator,
                    targets,
                    solver=GreedyBlockCoordinateDescent(),
                    stopping=MaxPasses(settings.certify_passes),
                    watch=replace(run, callback=None, checkpointing=None),
                )
                certificate = problem.with_descent(operator, certificate, fit.model, solution)
        near: FittedNear | None = None
        if settings.sparse_method.neighbours:
            with seconds.measured("neighbours"):
                near = fit_near(operator, targets, basis.inputs, settings.near)
        entries = operator.kernel_evaluations
    if greedy is not None and settings.gap is not None:
        greedy = replace(greedy, reason=_judged(greedy.reason, certificate, settings.gap, len(basis.inputs)))
    record: dict[str, Any] = {
        "kernel_evaluations": entries,
        "seconds": round(seconds.total, 3),
        "seconds_by_part": seconds.rounded(),
    }
    if near is not None:
        record |= near.summary()
    if given is not None:
        record |= {"basis": "given", "reason": f"all {len(basis.inputs):,} basis samples were chosen"}
    return problem.trained(settings, fit, basis, greedy, certificate, record, None if near is None else near.near)


def _choose(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    settings: SparseSettings,
    given: IndexArray | FloatArray | None,
    context: RunContext,
) -> tuple[Basis, GreedyBasis | None]:
    if given is not None:
        return given_basis(operator, given), None
    if settings.basis_name != "greedy":
        return blind_basis(operator, settings.basis_name, settings.basis_size, settings.seed), None
    greedy = choose_greedily(operator, targets, settings.greedy(), watch=context)
    return Basis(operator.inputs(greedy.indices), greedy.indices), greedy


def _judged(reason: StopReason, certificate: SparseCertificate, gap: float, size: int) -> StopReason:
    """Judge a gap by the proof for all targets together; during the choice it was estimated."""
    proven = certificate.total_gap
    if proven <= gap * (1.0 + GAP_ROUNDING):
        return StopReason("gap", True, f"duality gap {proven:.3g} <= {gap:.3g} is proven with {size:,} basis samples")
    if not reason.converged:
        return reason
    message = f"{reason.message} by the choice's sums; {proven:.3g} is proven of the fit"
    return StopReason("gap", False, message, "ask for a smaller gap, or raise the noise variance")
