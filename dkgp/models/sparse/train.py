"""Training of a sparse model: choose the basis, fit, certify; each step says in the summary what it took and proved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.types import Progress
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.sparse.bases import blind_basis, given_basis
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.fit import Basis, fit_sparse, require_range
from dkgp.models.sparse.problem import SparseProblem, TrainedSparse
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.vif.prediction import FittedNear, fit_near
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers import GreedyBlockCoordinateDescent, MaxPasses, solve
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import interrupted
from dkgp.solvers.greedy_basis import GreedyBasis, choose_greedily
from dkgp.solvers.stopping import StopReason

# Of a gap that was met by estimate: what roundings may add to it.
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

        with operator.watched(heed, run.within):
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
        record |= {"basis": "given", "reason": f"{len(basis.inputs):,} basis samples"}
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
    """The reason to stop at a gap by what is proven, of all targets together; choosing, it was estimated."""
    proven = certificate.total_gap
    if proven <= gap * (1.0 + GAP_ROUNDING):
        return StopReason("gap", True, f"duality gap {proven:.3g} <= {gap:.3g} is proven with {size:,} basis samples")
    if not reason.converged:
        return reason
    message = f"{reason.message} by the choice's sums; {proven:.3g} is proven of the fit"
    return StopReason("gap", False, message, "ask for a smaller gap, or raise the noise variance")
