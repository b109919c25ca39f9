"""Training on a basis: choose it, minimise by Newton's method, and prove how far the best of all functions may be.

f = K_nm beta minimises sum_i w_i l(y_i, f_i) + lambda beta' K_mm beta / 2 over beta. As a Gaussian process classifier,
with prior covariance K / lambda, it is the mode of Laplace's approximation, whose covariance on the basis is that of
(F'WF + lambda I)^-1 in whitened coordinates; what the basis leaves of k(x, x) is the prior's, as in regression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.models.classification.basis.certificate import CertifiedBasis, certify_basis
from dkgp.models.classification.basis.opening import opened
from dkgp.models.classification.basis.settings import BasisSettings
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import RiskCertificate
from dkgp.models.classification.trained import BasisForm, TrainedBasis
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.basis_risk.minimise import BasisDescent, BasisRiskSolution
from dkgp.solvers.basis_risk.problem import BasisRisk
from dkgp.solvers.basis_risk.state import BasisRiskState
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

    def stored(self) -> dict[str, Any]:
        """With a Gaussian process' factors."""
        return {**super().stored(), "posterior_lower": self.posterior_lower}


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
        See `BasisDescent.run`.
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
        operator, checkpoint, laps = run.operator, run.checkpoint, run.laps
        state = None if checkpoint is None else BasisRiskState.restored(checkpoint.metadata["state"], checkpoint.arrays)
        cross = CrossKernel(operator, run.prototypes)
        risk = BasisRisk(cross, targets, Risk(likelihood.loss, regularisation, data.weights))
        descent = BasisDescent(risk, settings.tolerance, settings.max_iterations, hessian=form == "gp")
        solution = descent.run(state, indices=run.indices, watch=run.context, checkpoints=run.checkpoints)
        laps.end("fit")
        proof: CertifiedBasis | None = None
        if settings.certify:
            proof = certify_basis(
                operator, cross, solution.weights, solution.values, targets, likelihood, regularisation, data.weights
            )
            laps.end("certificate")
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
