"""A proven distance from the exact model's mean, for the price of one product with the kernel matrix.

The model's Sigma^-1 Y is a vector of weights of all samples, alpha. Its residual r = Y - Kbar alpha in the exact
model's system proves how far the mean k(x, X) alpha is from the exact one, as of any solve; see
`dkgp.models.certificate`. The own mean at x of a model with neighbours is another number, so that

    |m(x) - m_exact(x)| <= |m(x) - k(x, X) alpha| + (the certificate's bound at x).

Proof: the triangle inequality. Both means are numbers as computed; the certificate counts the roundings of the second,
whatever the order of its sum, and alpha may be any vector, so that its own roundings do not matter.
"""

from __future__ import annotations

import numpy as np

from dkgp.models.certificate import Certificate
from dkgp.models.rounding import assumptions
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel


def certified_weights(operator: BlockedKernelOperator, weights: FloatArray, targets: FloatArray) -> Certificate:
    """Certificate of weights (n, p) for targets (n, p): one float64 product, n^2 kernel entries or half of them."""
    gradient = operator.matmat(weights) - targets
    return Certificate.of(
        weights,
        gradient,
        targets,
        operator.noise,
        operator.prior(),
        operator.row_errors(),
        assumes=assumptions(operator.kernel),
    )


def mean_distance(
    operator: BlockedKernelOperator,
    certificate: Certificate,
    weights: FloatArray,
    inputs: FloatArray,
    mean: FloatArray,
) -> FloatArray:
    """Bound on the distance of means (t, p) at inputs (t, d) from the exact model's: (t, p); n t kernel entries."""
    other = CrossKernel(operator, inputs).project(weights)
    prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
    bound = certificate.mean_error_bound(prior, operator.double.row_errors(inputs))
    # A difference of two numbers, and a sum.
    return np.asarray((np.abs(mean - other) + bound) * (1.0 + 4.0 * np.finfo(float).eps))
