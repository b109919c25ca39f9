"""Laplace's evidence of labels on a basis with neighbours, and its gradient: what hyperparameters are chosen by.

At the mode of a latent function (`mode`), with noise v = W^-1, targets u = f + v g and eta_i the slope of log N(u; 0,
Sigma) by v_i, the evidence is that of targets which the labels stand for,

    log q(y) = sum_i [log p(y_i | f_i) + v_i g_i^2 / 2 + log(2 pi v_i) / 2] + log N(u; 0, Sigma).

With f held, it moves as the last term does, a regression's. By f itself, since dg = -W df and Sigma^-1 u = g,

    s_i = v_i' (1 / v_i - g_i^2 + 2 eta_i) / 2,      v' = dv / df,

and the mode Sigma g = u moves by (Sigma W - J)^-1 dSigma g, with J how (Sigma - W^-1) g moves with f by its first
factor: zero where halos are everything. So the rest of the gradient is b'Sigma^-1 dSigma Sigma^-1 u with b = v (s +
J'Sigma^-1 b), of which b = v s is a first guess, and each turn leaves a small share of the error (`CORRECTIONS`). Both
are the slopes, in one pass, of

    -tr(M Y'Sigma^-1 Y) / 2 - log|Sigma| / 2,      Y = [u, b],  M = [1, 1;  1, 0].

Latent functions, each class against the rest, are added up.

References
----------
C. E. Rasmussen, C. K. I. Williams, Gaussian processes for machine learning (2006), section 5.5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.near.mode import LEAST_CURVATURE, ColumnLabels, ColumnState, ModeSearch, evidence
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.sparse.bound.search import BASIS_SIZES, SearchTargets, tune_by_bound
from dkgp.models.sparse.bound.trail import Trail
from dkgp.models.sparse.vif.objective import NearEvidence, Neighbourhood, Neighbours
from dkgp.models.sparse.vif.tasks import Described
from dkgp.models.tuning.laplace.columns import LogitEvidence, ProbitEvidence
from dkgp.models.tuning.likelihood_search import SearchSettings
from dkgp.models.tuning.problem import Choices
from dkgp.models.tuning.tasks import LabelLikelihood, SubsetSummary
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.inputs import InputSource
from dkgp.solvers.losses import LabelLoss

TITLE = "evidence with neighbours"
# Of the last step to a mode, in any value.
TOLERANCE = 1e-6
MOST_STEPS = 60
# Turns for b: see `docs/experiments.md`.
CORRECTIONS = 1
# Each class against the rest: their losses, and the evidence of labels that do not depend on inputs.
_DENSE: dict[LabelLikelihood | None, type[LogitEvidence] | type[ProbitEvidence]] = {
    "logit": LogitEvidence,
    "probit": ProbitEvidence,
}
# M: of the targets with themselves and with b; of the targets with b.
_BOTH, _ACROSS = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])


@dataclass(frozen=True)
class EvidenceLabels(ColumnLabels):
    """The labels of one latent function, of whose loss is known how its curvature moves."""

    loss: LabelLoss

    def log_curvature_slope(self, values: FloatArray) -> FloatArray:
        """d log W / df: (n,)."""
        return self.loss.log_curvature_slope(self.signs, values)


class LabelVifObjective(NearEvidence):
    """Evidence of labels, a column for each latent function; the noise variance is of no account.

    `start` (n, t) are the modes of the last evaluation.
    """

    def __init__(
        self,
        source: InputSource,
        columns: Sequence[EvidenceLabels],
        context: RunContext | BlockExecutor,
        neighbours: Neighbours | None = None,
    ) -> None:
        if not columns or any(len(labels.signs) != source.n_samples for labels in columns):
            counts = [len(labels.signs) for labels in columns]
            raise InputError(f"expected columns of labels of {source.n_samples:,} samples; got {counts}")
        super().__init__(source, context, neighbours)
        self._columns = columns

    def _evaluated(
        self, held: Neighbourhood, operator: BlockedKernelOperator, model: Described
    ) -> tuple[float, FloatArray, float]:
        value, gradient, explained, modes = 0.0, np.zeros(len(operator.kernel.parameters()) + 1), 0.0, []
        with closing(ModeSearch(operator, held, model)) as search:
            for column, labels in enumerate(self._columns):
                start = None if self.start is None else self.start[:, column].astype(np.float64)
                state = _mode(search, labels, start)
                value += evidence(state)
                gradient[:-1] += _slopes(held, operator, search.model, state, labels)
                assert state.joint is not None
                explained = state.joint.explained
                modes.append(state.values.astype(np.float32))
        self.start = np.column_stack(modes)
        return value, gradient, explained


def _mode(search: ModeSearch, labels: EvidenceLabels, start: FloatArray | None) -> ColumnState:
    """The mode, from values (n,) near it or, where these are none or lead nowhere, from zero."""
    state = ColumnState.start(labels, start)
    # With held noise it would be the mode of a covariance that depends on the way there.
    while not (state.ended or state.held):
        search.step(state, labels, TOLERANCE, MOST_STEPS)
    if state.ended == "mode":
        return state
    if start is not None:
        return _mode(search, labels, None)
    raise NumericalError(
        f"the labels' mode was not found in {state.steps} steps; the last one's largest change is {state.change:.2g}"
    )


def _slopes(
    held: Neighbourhood, operator: BlockedKernelOperator, model: Described, state: ColumnState, labels: EvidenceLabels
) -> FloatArray:
    """Slopes of one mode's evidence by the logarithms of the kernel's parameters: (q,)."""
    u, noise, joint = state.targets, state.noise, state.joint
    assert u is not None
    assert noise is not None
    assert joint is not None
    noisy = operator.with_noise(noise)
    with single_threaded_blas():
        moved = joint.moved()
    eta = held.noise_slopes(noisy, model, moved, u[:, None])
    rate = -labels.log_curvature_slope(state.values)  # v' / v
    # Where W is held, the noise does not move.
    rate[noise >= 1.0 / LEAST_CURVATURE] = 0.0
    s = 0.5 * rate * (1.0 + noise * (2.0 * eta - state.weights**2))
    targets = np.column_stack([u, noise * s])
    pair = held.joint(noisy, model, targets)
    for _ in range(CORRECTIONS):
        z = held.weights(noisy, model, pair, targets)[:, 1]
        with single_threaded_blas():
            moved = pair.moved(_ACROSS, 0.0)
        across = held.noise_slopes(noisy, model, moved, targets)
        # J'z: what is left of d (z'Sigma g) / dv beside the noise itself.
        targets[:, 1] = noise * (s + noise * rate * (across - z * state.weights))
        pair = held.joint(noisy, model, targets)
    with single_threaded_blas():
        moved = pair.moved(_BOTH, 1.0)
    slopes, _ = held.slopes(noisy, model, moved, targets)
    return slopes


def tune_labels_by_neighbours(
    data: LabelledData,
    context: RunContext | BlockExecutor,
    choices: Choices,
    settings: SearchSettings,
    *,
    basis_size: int = BASIS_SIZES["vif"],
    note: Callable[[str], None] | None = None,
    trail: Trail | None = None,
) -> Hyperparameters:
    """Find a kernel's hyperparameters by the evidence of all labels; parameters and errors as of `tune_by_bound`.

    Of the choices' likelihoods softmax is refused: its classes have no functions of their own. `InputError`: samples
    of one class alone, too.
    """
    labels, name = data.labels, choices.likelihood
    if name not in _DENSE:
        raise InputError(
            f"the evidence of labels with neighbours is of the likelihoods logit and probit, each class against the "
            f"rest; got {name}"
        )
    if len(np.unique(labels.codes)) < 2:
        raise InputError(f"the {data.n:,} samples are of one class only; expected at least two classes to tell apart")
    signs, dense = labels.signs(), _DENSE[name]
    columns = [EvidenceLabels(np.ascontiguousarray(column), dense.loss, data.weights) for column in signs.T]
    summary = SubsetSummary(signs.size, dense.independent(signs, data.weights), np.zeros(0))
    targets = SearchTargets(
        "vif",
        summary,
        lambda within: LabelVifObjective(data.dataset, columns, within),
        TITLE,
        "Take fewer basis samples, start from a smaller amplitude, or give the hyperparameters yourself",
    )
    return tune_by_bound(
        data.dataset,
        context,
        choices,
        settings,
        objective=targets,
        basis_size=basis_size,
        note=note,
        trail=trail,
    )
