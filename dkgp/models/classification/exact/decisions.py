"""Decisions at test samples, and by how much each may miss the exact LS-SVM's."""

from __future__ import annotations

import numpy as np

from dkgp.models.classification.exact.certificate import DecisionCertificate
from dkgp.models.rounding import certified_row_errors
from dkgp.models.sums import EVERY_ENTRY, Sums
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext


def certified_decisions(
    context: BlockContext,
    certificate: DecisionCertificate,
    alpha: FloatArray,
    ones: FloatArray,
    intercept: FloatArray,
    inputs: FloatArray,
    sums: Sums = EVERY_ENTRY,
) -> tuple[FloatArray, FloatArray]:
    """k_x'alpha + b at standardised inputs, and by how much each may miss the exact decision: (r, t) both.

    One product with all columns, so that each kernel entry is evaluated once; `context` is of the support inputs.
    `ones` is E, which is not looked at where the certificate is of a model without intercept.
    """
    t = alpha.shape[1]
    weights = np.column_stack([alpha, ones]) if certificate.intercept else alpha
    products, off = sums.products(context, inputs, weights)
    decisions = products[:, :t] + intercept
    bounds = certificate.decision_error_bound(
        decisions,
        products[:, t] if certificate.intercept else None,
        context.kernel.diagonal(inputs),
        certified_row_errors(context.kernel, context.source, inputs),
        off,
    )
    return decisions, bounds
