"""The exact line search: where a risk's slope along a line vanishes, from vectors at hand and no kernel entry.

Of f + t K h the risk is convex in t, its slope rises, and its second derivative is known: Newton's iteration within a
bracket that halves where it would leave it. Problems that share a product are searched together, each its own line.
"""

from __future__ import annotations

import numpy as np

from dkgp.operators.base import FloatArray
from dkgp.solvers.risk.problem import Risk

LARGEST_STEP = 2.0**100
# Newton's iteration, and from there on halvings.
MOST_NEWTON, MOST_TRIALS = 40, 100
# A slope at this share of the first, or a bracket as narrow, is as good as none.
NEGLIGIBLE = 1e-13
_EPS = float(np.finfo(np.float64).eps)


def line_minima(
    risk: Risk, targets: FloatArray, alpha: FloatArray, values: FloatArray, direction: FloatArray, image: FloatArray
) -> FloatArray:
    """Steps at which the risk is least along alpha + t h: (q,), zero where that is no way down.

    - `targets`, `alpha`, `values`, `direction`, `image` (n, p): y, alpha, f = K alpha, h and K h.
    """
    linear = risk.regularisation * risk.inner(alpha, image)
    quadratic = np.maximum(risk.regularisation * risk.inner(direction, image), 0.0)

    def slopes(step: FloatArray) -> tuple[FloatArray, FloatArray]:
        at = values + step * image
        first = risk.inner(risk.slope(targets, at), image) + linear + step * quadratic
        return first, risk.inner(risk.curvature_times(targets, at, image), image) + quadratic

    low, high = np.zeros_like(linear), np.full_like(linear, np.inf)
    first, second = slopes(low)
    noise = _EPS * (risk.inner(np.abs(risk.slope(targets, values)), np.abs(image)) + np.abs(linear))
    enough = np.maximum(NEGLIGIBLE * np.abs(first), noise)
    done, step = ~(first < 0.0), np.zeros_like(low)
    for count in range(MOST_TRIALS):
        if done.all():
            break
        newton = step + np.divide(-first, second, out=np.full_like(first, np.inf), where=second > 0.0)
        middle = np.where(np.isfinite(high), 0.5 * (low + high), np.where(low > 0.0, 2.0 * low, 1.0))
        sound = (newton > low) & (newton < high) & (newton <= LARGEST_STEP) & (count < MOST_NEWTON)
        trial = np.where(sound, newton, middle)
        still = np.abs(trial - step) <= NEGLIGIBLE * trial
        step = np.where(done, step, trial)
        first, second = slopes(step)
        low, high = np.where(first < 0.0, step, low), np.where(first >= 0.0, step, high)
        # A share of the lower end: where there is no upper one yet, a share of that would be as infinite as the width.
        done = done | still | (np.abs(first) <= enough) | (high - low <= NEGLIGIBLE * low) | (step >= LARGEST_STEP)
    return step
