"""Mode, evidence and probabilities of a Gaussian process classifier, beside scikit-learn's on the same 500 samples.

dkgp's mode and probabilities come from the way that takes any number of samples, solved for to 1e-9; the evidence from
that which hyperparameters are found by. scikit-learn averages probabilities by a mixture of five error functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import dkgp
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.laplace import LogitEvidence
from dkgp_benchmarks.certify.dense import averaged_logit, latent_variances, logit_mode

FloatArray = NDArray[np.float64]

SAMPLES, TESTS, FEATURES = 500, 200, 3
AMPLITUDE, SCALES = 4.0, (0.8, 1.3, 2.0)
TOLERANCE = 1e-9
# Asked for: of the mode and the evidence, and of probabilities, which scikit-learn has to three or four digits.
CLOSE, CLOSE_PROBABILITY = 1e-6, 1e-3

COLUMNS = (
    Column("what", "quantity", text=True),
    Column("ours", "dkgp", ".9g"),
    Column("theirs", "scikit-learn", ".9g"),
    Column("difference", "largest difference", ".1e"),
    Column("asked", "allowed", ".0e"),
    Column("holds", "holds", text=True),
)


def equality(seed: int) -> Document:
    """Fit both with the same kernel to generated labels; a section of the differences."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    rng = np.random.default_rng([seed, 41])
    inputs, tests = rng.standard_normal((SAMPLES, FEATURES)), rng.standard_normal((TESTS, FEATURES))
    latent = np.sin(2.0 * inputs[:, 0]) + inputs[:, 1] + 0.7 * rng.standard_normal(SAMPLES)
    codes = (latent > 0.0).astype(np.int64)
    signs: FloatArray = np.where(codes == 1, 1.0, -1.0)[:, None]
    # Standardised beforehand, so that both have the same kernel.
    mean, std = inputs.mean(axis=0), inputs.std(axis=0)
    inputs, tests = (inputs - mean) / std, (tests - mean) / std
    theirs = GaussianProcessClassifier(
        ConstantKernel(AMPLITUDE) * RBF(SCALES), optimizer=None, max_iter_predict=10_000
    ).fit(inputs, codes)
    gamma = tuple(0.5 / scale**2 for scale in SCALES)
    kernel = SquaredExponential(gamma=gamma, variance=AMPLITUDE)
    hyper = Hyperparameters(kernel, 1.0)
    model: Any = dkgp.GPClassifier(kernel=hyper, tol=TOLERANCE).fit(inputs, codes)
    names = tuple(f"x{feature}" for feature in range(FEATURES))
    family = family_of(kernel, inputs, True, names)
    value = LogitEvidence(family, signs)(np.append(family.initial(), 0.0))
    evidence = np.nan if value is None else value[0]
    probabilities = np.asarray(model.predict_proba(tests))[:, 1]
    their_probabilities = theirs.predict_proba(tests)[:, 1]
    modes = np.asarray(model.decision_function(inputs)), np.asarray(theirs.base_estimator_.f_cached)
    K, across = kernel(inputs, inputs), kernel(tests, inputs)
    dense = logit_mode(K, signs, 1.0)
    p = 1.0 / (1.0 + np.exp(-dense.values[:, 0]))
    variance = latent_variances(K, across, kernel.diagonal(tests), p * (1.0 - p))
    by_quadrature = averaged_logit((across @ dense.alpha)[:, 0], variance)
    their_evidence = float(theirs.log_marginal_likelihood_value_)
    rows = [
        _row("mode at the samples, the first", modes[0], modes[1], CLOSE),
        _row("log evidence", np.array([evidence]), np.array([their_evidence]), CLOSE * abs(their_evidence)),
        _row("probabilities, the first", probabilities, their_probabilities, CLOSE_PROBABILITY),
        _row("the same by quadrature on a dense factor", probabilities, by_quadrature, CLOSE_PROBABILITY),
    ]
    return {
        "section": "equality",
        "title": f"A Gaussian process classifier beside scikit-learn's, n = {SAMPLES}, {TESTS} test samples",
        "columns": [dict(vars(column)) for column in COLUMNS],
        "rows": plain(rows),
        "figures": {"holds": sum(row["holds"] == "yes" for row in rows), "of": len(rows)},
    }


def _row(what: str, ours: FloatArray, theirs: FloatArray, asked: float) -> dict[str, Any]:
    difference = float(np.max(np.abs(ours - theirs)))
    shown = {"what": what, "ours": float(ours.flat[0]), "theirs": float(theirs.flat[0])}
    return {**shown, "difference": difference, "asked": asked, "holds": "yes" if difference <= asked else "no"}
