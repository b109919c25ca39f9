"""A regression to train a sparse model of, and a model that has been trained: the same for a basis and for a ladder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.models.context import RunContext
from dkgp.models.problem import Problem
from dkgp.models.sparse.certificate import SparseCertificate, certify
from dkgp.models.sparse.errors import SampleErrors
from dkgp.models.sparse.fit import Basis, SparseFit
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.risk import descent_bound, subset_bound
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.vif.prediction import Near
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.solvers import Solution
from dkgp.solvers.greedy_basis import GreedyBasis
from dkgp.solvers.stopping import StopReason


@dataclass(frozen=True)
class TrainedSparse:
    """A sparse model, what is proven of it, and how it came about."""

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
        """The trained model; in its summary what `record` says counts, in plain JSON types."""
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
    fewer = (
        f": others add nothing that float64 could tell; {wanted_size:,} were asked for" if size < wanted_size else ""
    )
    return StopReason("size", True, f"{size:,} basis samples{fewer}")
