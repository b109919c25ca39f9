"""Classifiers on a basis: choose it, minimise by Newton's method, and prove how far the best of all functions may be.

f = K_nm beta minimises sum_i w_i l(y_i, f_i) + lambda beta' K_mm beta / 2 over beta. As a Gaussian process classifier,
with prior covariance K / lambda, it is the mode of Laplace's approximation, whose covariance on the basis is that of
(F'WF + lambda I)^-1 in whitened coordinates; the part of k(x, x) outside the basis is the prior's, as in regression.

Certificate
-----------
`certify_basis` bounds the distance of a basis' function to the best of all, roundings counted. The regularised risk
R(f) = sum_i w_i l(y_i, f(x_i)) + lambda |f|_H^2 / 2 is lambda-strongly convex over all of H. With its gradient at any f
of H, G = lambda f + sum_i u_i k(x_i, .), u_i = w_i l'(y_i, f(x_i)), and f* its minimiser,

    lambda |f - f*|_H^2 <= <G, f - f*>,    so that    |f - f*|_H <= |G|_H / lambda    and
    |f(x) - f*(x)| <= sqrt(k(x, x)) |G|_H / lambda,    R(f) - R(f*) <= |G|_H^2 / (2 lambda),

which is the duality gap R(f) - D(u) of u: the same bound, without logarithms. For f = sum_j beta_j k(z_j, .)

    |G|_H^2 = lambda beta'(lambda K_mm beta + K_mn u) + u'(lambda f(X) + K u),

a product with K, in which each bracket is small where f is good, so that terms that cancel do so first. Slopes that are
off by delta move G by no more than sum_i |delta_i| sqrt(k(x_i, x_i)). The classes of a coupled loss are one function of
values in R^C, and share one bound.

No bound on the root mean square over the samples is better than this one: a loss that is not strongly convex does not
see by how much the values differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.codec import identity, rule, to_json
from dkgp.data import Checkpoint
from dkgp.errors import InputError
from dkgp.models.classification.certificate import FEW, RiskCertificate
from dkgp.models.classification.labels import LabelledData, digest
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.prototypes import DEFAULT_BASIS, check_prototypes, choose_prototypes
from dkgp.models.classification.trained import BasisForm, TrainedBasis
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.memory import MATRICES, Memory, Part, TrainingSizes
from dkgp.models.rounding import EPS, EVALUATION, UNIT, assumptions, product_roundings
from dkgp.models.sparse.bases import given_basis
from dkgp.models.sparse.bounds import SampleErrors
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import MOST_TRAVERSALS, CrossKernel
from dkgp.operators.cross.tasks import WAITING_SUMS, cross_bytes, piece_rows
from dkgp.operators.exact_sums import unit_count
from dkgp.solvers.base import Clock
from dkgp.solvers.basis_risk.minimise import (
    MOST_BLOCK_ROWS,
    MOST_PAIRS,
    BasisDescent,
    BasisRiskSolution,
)
from dkgp.solvers.basis_risk.problem import GRAM_BYTES, BasisRisk
from dkgp.solvers.driver import Iteration, Loop
from dkgp.solvers.prices import Phase, Work
from dkgp.solvers.risk import Risk


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedOnBasis(TrainedBasis):
    """A classifier on a basis alone.

    Attributes
    ----------
    posterior_lower : (t, m, m) float64 or None
        Lower factors of I + F'WF / lambda, of a Gaussian process; of softmax (1, t m, t m).
    certificate : RiskCertificate or None
        The distance to the best of all functions, where the settings ask for it.
    solution : BasisRiskSolution
    """

    posterior_lower: FloatArray | None
    certificate: RiskCertificate | None
    solution: BasisRiskSolution


def train_on_basis(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: BasisSettings,
    *,
    likelihood: Likelihood,
    form: BasisForm = "logistic",
    regularisation: float = 1.0,
    given: IndexArray | FloatArray | None = None,
) -> TrainedOnBasis:
    """Train a logistic or a Gaussian process classifier on a basis.

    Parameters
    ----------
    data : LabelledData
    hyperparameters : Hyperparameters
        The kernel; noise plays no part.
    context : RunContext or BlockExecutor
        Who computes, and who watches; checkpoints are of Newton's steps.
    settings : BasisSettings
    likelihood : Likelihood
    form : {"logistic", "gp"}
        A Gaussian process also keeps the covariance of Laplace's approximation.
    regularisation : float
        lambda.
    given : (m,) int or (m, d) float64, optional
        A basis of the user's own, samples or standardised inputs.

    Raises
    ------
    InputError
        A regularisation that is not positive, a basis that is none, or the covariance of softmax with more coefficients
        than a factor may have rows.
    NumericalError
        See `BasisDescent.run`; with neighbours `ModeSearch.step`.
    CheckpointError
        A checkpoint of another run.
    InterruptedRunError
        The context asked for the end.
    """
    if not (math.isfinite(regularisation) and regularisation > 0.0):
        raise InputError(f"`regularisation` must be positive and finite; got {regularisation}")
    if form not in ("logistic", "gp"):
        raise InputError(f"`form` is 'logistic' or 'gp'; got {form!r}")
    targets = likelihood.targets(data.labels)
    with opened(data, hyperparameters, context, settings, likelihood, form, regularisation, given) as run:
        operator, clock = run.operator, run.clock
        cross = CrossKernel(operator, run.prototypes)
        risk = BasisRisk(cross, targets, Risk(likelihood.loss, regularisation, data.weights))
        descent = BasisDescent(
            risk, settings.tolerance, settings.max_iterations, hessian=form == "gp", indices=run.indices
        )
        solution = descent.run(run.resumed(descent))
        clock.lap("fit")
        proof: CertifiedBasis | None = None
        if settings.certify:
            proof = certify_basis(
                operator, cross, solution.weights, solution.values, targets, likelihood, regularisation, data.weights
            )
            clock.lap("certificate")
        kernel_lower = cross.lower if form == "gp" else None
        scale = math.sqrt(float(operator.prior().max())) * (1.0 + 1e-9)
        summary = {**_summary(solution, proof, scale), "method": form, **run.summary(solution.explained)}
    posterior_lower = None
    if solution.hessian is not None:
        posterior_lower = np.stack([factor / np.sqrt(regularisation) for factor in solution.hessian.lowers])
        summary["evidence"] = _evidence(solution, posterior_lower)
    return TrainedOnBasis(
        form=form,
        kernel=operator.kernel,
        classes=data.labels.classes,
        certificate=None if proof is None else proof.certificate,
        history=[progress.to_json() for progress in solution.history],
        summary=summary,
        regularisation=regularisation,
        likelihood=likelihood,
        prototypes=cross.prototypes,
        indices=run.indices,
        weights=solution.weights,
        kernel_lower=kernel_lower,
        posterior_lower=posterior_lower,
        solution=solution,
    )


def _evidence(solution: BasisRiskSolution, posterior: FloatArray) -> float:
    """Laplace's log p(y) under the basis' covariance F F' / lambda: -R - log|I + F'WF / lambda| / 2."""
    logarithms = [float(np.log(lower.diagonal()).sum()) for lower in posterior]
    return -float(solution.risk.sum()) - sum(logarithms)


def _summary(solution: BasisRiskSolution, proof: CertifiedBasis | None, scale: float) -> dict[str, Any]:
    progress, risk = solution.history[-1], float(solution.risk.sum())
    summary: dict[str, Any] = {
        "solver": "newton",
        **solution.reason.summary(),
        "iterations": progress.iteration,
        "passes": solution.passes,
        "hessians": solution.gram_passes,
        "hessian": solution.kind,
        "column_passes": progress.column_passes,
        "risk": risk,
        # By how much decisions may miss those of the basis' own best function.
        "decision_error": [progress.relative_residual] * solution.weights.shape[1],
    }
    if proof is None:
        return summary
    excess, assumes = sum(proof.excess), proof.certificate.assumes
    return {
        **summary,
        # No risk is below zero.
        "risk_lower_bound": max(risk - excess, 0.0),
        "risk_gap": min(excess / risk, 1.0),
        # Of decisions, at the samples; everywhere where k(x, x) is the same.
        "distance": [radius * scale for radius in proof.certificate.radius],
        **({} if assumes is None else {"assumes": assumes}),
    }


@dataclass(frozen=True)
class BasisSettings:
    """Settings of a classifier on a basis.

    Parameters
    ----------
    size : int, default 1000
        Basis samples, m, at most.
    basis : str, default "pivoted"
        One of `BASES` of `dkgp.models.classification.prototypes`.
    certify : bool, default False
        Also prove how far decisions are from those of the minimiser over all functions: one product with K.
    tolerance : float, default 1e-4
        Of decisions: how far they may be from those of the basis' own best function, for all inputs.
    max_iterations : int, default 200
        Steps of Newton's method.
    seed : int

    Raises
    ------
    InputError
        A setting out of range, or a basis that is none.
    """

    size: int = 1000
    basis: str = DEFAULT_BASIS
    certify: bool = field(default=False, metadata=rule(decides=False))  # plays no part in Newton's steps
    tolerance: float = 1e-4
    max_iterations: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_prototypes(self.basis)
        for name, least in (("size", 1), ("max_iterations", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"`{name}` must be at least {least}; got {getattr(self, name)}")
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"`tolerance` must be positive and finite; got {self.tolerance}")

    def memory(self, sizes: TrainingSizes, *, coupled: bool = False) -> Memory:
        """Project the memory of training; with columns that hang together, as softmax has, pairs have matrices."""
        n, d, t, executor = sizes.n, sizes.d, sizes.t, sizes.executor
        m, threads = min(self.size, n), executor.threads_per_process
        matrix = 8 * m * m
        if coupled:
            at_once = m * t <= MOST_BLOCK_ROWS
            grams, factors = (t * (t + 1) // 2, 2 * t * t) if at_once else (1, 1)
        else:
            grams, factors = min(t, max(1, GRAM_BYTES // max(1, matrix))), t
        cross = cross_bytes(n, d, m, t)
        # Beside the memory of one Gram: the others in flight, and a weighted copy of a piece.
        extra = (grams - 1) * matrix * (3 * threads + WAITING_SUMS) + threads * 8 * m * piece_rows(m)
        features = min(sizes.cache_bytes, 8 * n * (sizes.width + 1))
        pairs = 2 * MOST_PAIRS * 8 * m * t
        summing = f"workers, which sum up to {grams} matrices in a pass, {{}}"
        parts = {
            "matrices_bytes": Part((3 + grams + factors) * matrix + pairs, words=MATRICES),
            # Targets, values before, at and after a trial, slopes and curvatures, and as many on their way.
            "vectors_bytes": Part(8 * n * (12 * t + 4), words="vectors {}"),
            "worker_bytes": Part(cross.worker(threads) + extra + features, "worker", summing),
            # Workers keep leaves' matrices from one of Newton's steps to the next.
            "kept_bytes": Part(0, "worker"),
        }
        about = {"basis_size": m, "grams": grams}
        words = f"a classifier of {m:,} basis samples"
        return Memory(words, parts, executor.shares_memory, about, kept="the leaves' matrices")


@dataclass(frozen=True)
class Opened:
    """A run with its basis: standardised inputs (m, d), and the samples (m,) that they are, if any."""

    loop: Loop
    checkpoint: Checkpoint | None  # to resume
    operator: BlockedKernelOperator
    prototypes: FloatArray
    indices: IndexArray | None
    clock: Clock
    about: dict[str, Any]  # data and problem, for summaries

    def resumed(self, steps: Iteration) -> Loop:
        """Return the loop for Newton's steps, which continue from the checkpoint if there is one."""
        if self.checkpoint is not None:
            steps.resume(self.checkpoint)
        return self.loop

    def summary(self, explained: float) -> dict[str, Any]:
        """Return data, problem and effort, and the share of the samples' k(x, x) that the basis does not explain."""
        return {
            **self.about,
            "basis_size": len(self.prototypes),
            "left": 1.0 - explained / float(self.operator.prior().sum()),
            "kernel_evaluations": self.operator.kernel_evaluations,
            "seconds": round(self.clock.total, 3),
            "seconds_by_part": self.clock.rounded(),
        }


@contextmanager
def opened(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: BasisSettings,
    likelihood: Likelihood,
    form: str,
    regularisation: float,
    given: IndexArray | FloatArray | None,
) -> Iterator[Opened]:
    """Open a run, and take its basis from the checkpoint, from the user, or choose one.

    Raises `InputError` for a basis that is none, `CheckpointError` for a checkpoint of another run, and
    `InterruptedRunError` if the user ends the run.
    """
    clock, context = Clock(), RunContext.of(context)
    kernel, _ = data.kernel(Hyperparameters(hyperparameters.kernel, 1.0))
    problem = {"likelihood": to_json(likelihood), "regularisation": regularisation}
    shared = {**identity(settings), **problem, "form": form, **data.identity, "given": digest(given, "<f8")}
    loop = Loop(context, shared, unit="step", waits=False)
    checkpoint = loop.latest()
    # Least squares that bound the loss from above have this noise, by which a greedy choice is judged.
    noise = regularisation / likelihood.loss.curvature_bound
    with context.operator(kernel, noise, data.dataset) as operator, operator.watched(loop.pass_on):
        if checkpoint is not None:
            indices, prototypes = checkpoint.arrays.get("indices"), checkpoint.arrays["prototypes"]
        elif given is not None:
            basis = given_basis(operator, given)
            indices, prototypes = basis.indices, basis.inputs
        else:
            indices, prototypes = choose_prototypes(
                settings.basis, operator, settings.size, settings.seed, targets=data.labels.signs()
            )
        clock.lap("choice")
        about = {**data.summary(), **problem, "basis": settings.basis if given is None else "given"}
        yield Opened(loop, checkpoint, operator, prototypes, indices, clock, about)


@dataclass(frozen=True)
class CertifiedBasis:
    """Proofs of a basis' function: of its decisions, and R(f) - R(f*) at most, of each problem.

    The certificate's radius is the distance to the minimiser over all functions.
    """

    certificate: RiskCertificate
    excess: tuple[float, ...]


@np.errstate(over="ignore", invalid="ignore")  # a NaN bounds nothing: see `bounding`
def certify_basis(
    operator: BlockedKernelOperator,
    cross: CrossKernel,
    weights: FloatArray,
    values: FloatArray,
    targets: FloatArray,
    likelihood: Likelihood,
    regularisation: float,
    sample_weights: FloatArray | None = None,
) -> CertifiedBasis:
    """Certify f = K_nm beta; one product with K and one with K_mn. The operator's noise variance plays no part.

    `weights` (m, t) are beta, `values` (n, t) f at the samples, as K_nm beta was computed; `regularisation` is lambda,
    and `sample_weights` (n,) are w, ones by default.
    """
    t, lam = values.shape[1], regularisation
    errors = SampleErrors.of(operator, cross.prototypes)
    counts = np.ones((len(values), 1)) if sample_weights is None else sample_weights[:, None]
    u = counts * likelihood.loss.slope(targets, values)
    at_samples = lam * values + (operator.matmat(u, "double") - operator.noise_times(u))
    at_basis = lam * cross.inner(weights) + cross.project(u)
    squares = lam * np.einsum("mt,mt->t", weights, at_basis) + np.einsum("nt,nt->t", u, at_samples)
    constant, by_error = errors.products(weights)
    samples, prototypes = errors.samples, errors.prototypes
    # By how much f as computed is off at each sample: (n, t).
    off_values = samples.scale[:, None] * constant + (samples.scale * samples.errors)[:, None] * by_error
    off_products = _product_errors(operator, samples.scale, samples.errors, u, at_samples) + operator.error_bound
    off_samples = lam * off_values + off_products + 4.0 * UNIT * (lam * np.abs(values) + np.abs(at_samples))
    size, spread = prototypes.size(weights), prototypes.spread(weights)
    inner = (cross.m + 4) * UNIT * size + 2.0 * EPS * (spread + size * float(prototypes.errors.max()))
    off_basis = prototypes.scale[:, None] * (lam * EVALUATION * inner + errors.projections(u))
    off_basis = off_basis + 4.0 * UNIT * np.abs(at_basis)
    summed = (len(u) + cross.m + 8) * UNIT
    off = lam * np.einsum("mt,mt->t", np.abs(weights), off_basis + summed * np.abs(at_basis))
    off += np.einsum("nt,nt->t", np.abs(u), off_samples + summed * np.abs(at_samples))
    # The slopes at f lie between these; the product with a weight is one rounding.
    low, high = likelihood.slopes(targets, values, off_values)
    slopes = np.maximum(np.abs(counts * low - u), np.abs(counts * high - u)) + 4.0 * UNIT * np.abs(u)
    lengths = np.sqrt(np.maximum(squares, 0.0) + EVALUATION * off) * FEW + EVALUATION * (samples.scale @ slopes)
    if likelihood.coupled:
        lengths = np.full(t, np.linalg.norm(lengths) * FEW)
    certificate = RiskCertificate(
        n=cross.m,
        radius=tuple((lengths / lam * FEW).tolist()),
        magnitude=tuple((EVALUATION * size).tolist()),
        spread=tuple((EVALUATION * spread).tolist()),
        coupled=likelihood.coupled,
        assumes=assumptions(operator.kernel),
    )
    excess = 0.5 * lengths[: 1 if likelihood.coupled else t] ** 2 / lam * FEW
    return CertifiedBasis(certificate, tuple(excess.tolist()))


def _product_errors(
    operator: BlockedKernelOperator, scale: FloatArray, row_errors: FloatArray, u: FloatArray, images: FloatArray
) -> FloatArray:
    """Bound the errors of the entries of K u: (n, t); see `dkgp.models.certificate`."""
    roundings, absolute = product_roundings(len(u)) * UNIT, np.abs(u)
    sizes, spreads = scale @ absolute, (scale * row_errors) @ absolute
    off = (scale * (roundings + EPS * row_errors))[:, None] * sizes + EPS * scale[:, None] * spreads
    noise = np.broadcast_to(np.asarray(operator.noise, dtype=np.float64), (len(u),))[:, None]
    return np.asarray(EVALUATION * (off + (roundings + 4.0 * UNIT) * noise * absolute + 4.0 * UNIT * np.abs(images)))


# Steps that take a Hessian, about, and passes besides.
HESSIANS, PASSES = 8.0, 16.0


def choice_phase(settings: BasisSettings, n: int, d: int) -> Phase:
    """The choice of a basis among n samples of d features."""
    m = float(min(settings.size, n))
    work = Work(double_entries=n * m) if settings.basis != "uniform" else Work()
    return Phase("choice", 1.0, work, rounds=1, pieces=MOST_TRAVERSALS, returned=8.0 * m * d)


def basis_phases(settings: BasisSettings, n: int, d: int, t: int, *, coupled: bool) -> list[Phase]:
    """The work on n samples of d features in its order, of t columns of decisions, which may hang together."""
    samples, m = float(n), float(min(settings.size, n))
    grams = t * (t + 1) / 2.0 if coupled else float(t)
    return [
        choice_phase(settings, n, d),
        Phase(
            "steps",
            PASSES + HESSIANS,
            Work(double_entries=samples * m, double_operations=4.0 * samples * m * t),
            rounds=1,
            pieces=unit_count(n),
            sent_to_each=8.0 * m * (d + t),
            returned=8.0 * m * t,
        ),
        Phase(
            "Hessians",
            HESSIANS,
            Work(double_operations=samples * m * m * grams),
            threaded=Work(double_operations=grams * m**3),
            rounds=1,
            pieces=unit_count(n),
            returned=8.0 * m * m * grams,
        ),
    ]


def basis_entries(settings: BasisSettings, n: int) -> float:
    """Kernel entries that it evaluates, about: those of its passes, and of the choice."""
    return (PASSES + HESSIANS + 1.0) * n * min(settings.size, n)
