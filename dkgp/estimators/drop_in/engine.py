"""Beyond memory: the same posterior by dkgp's engine, which never holds the kernel matrix.

Inputs and targets are not scaled, so that kernel and noise mean what they mean in scikit-learn. Where only differences
of inputs matter, inputs that lie away from the origin are shifted there.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.cluster.client_executor import is_in_process
from dkgp.data import Dataset, Standardisation, dataset_from_arrays
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.errors import InputError
from dkgp.estimators.ambient import ambient_client
from dkgp.estimators.drop_in.dense import Predicted
from dkgp.estimators.drop_in.translation import to_dkgp
from dkgp.estimators.drop_in.tree import Entries
from dkgp.estimators.fitted import FittedModel, Workspace
from dkgp.estimators.outputs.outputs import quantities
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.estimators.settings import executor_for, solver_for, stopping_of
from dkgp.kernels import Kernel, Linear, Polynomial, fold_white
from dkgp.models.exact import train
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.rounding import outward
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.inputs import ArrayInputs, centre_of

# Of the largest entry of the gradient Kbar alpha - y, relative to the targets' size.
TOLERANCE = 1e-5
MOST_PASSES = 2000.0
VARIANCE_GAP = 0.01


class EnginePosterior:
    """The posterior of samples whose kernel matrix does not fit.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        With the values to be used.
    X : (n, d) array
    targets : (n, t) float64
    alpha : float or (n,) float64
        Noise that belongs to no kernel.
    seed : int

    Raises
    ------
    InputError
        A kernel that dkgp does not have, or a sample without any noise.

    Warns
    -----
    ConvergenceWarning
        The solve stopped short; what is proven of predictions holds.
    """

    def __init__(self, kernel: Any, X: Any, targets: FloatArray, alpha: Entries, seed: int) -> None:
        rows = np.ascontiguousarray(X, dtype=np.float64)
        d = rows.shape[1]
        ours, self.white = fold_white(to_dkgp(kernel, d), 0.0)
        noise = _noise_of(self.white, alpha)
        workspace = Workspace(None)
        dataset = _unscaled(rows, targets, _shift_of(ours, rows), workspace)
        size = float(np.sqrt(np.mean(targets**2))) or 1.0
        tolerance = TOLERANCE * size
        solver, products = solver_for("auto", Problem(dataset, ours, noise), tolerance, seed)
        with executor_for(None, dataset) as executor:
            executor.tiles = replace(executor.tiles, products=products)
            stopping = stopping_of(tolerance, MOST_PASSES)
            trained = train(dataset, ours, noise, executor, solver=solver, stopping=stopping)
        self.fitted = FittedModel.of(trained.model(dataset), workspace, {})
        self.coefficients = np.asarray(trained.solution.alpha)
        self.summary = trained.summary
        if not trained.summary["converged"]:
            warnings.warn(
                f"not converged: {trained.summary['reason']}; {trained.summary['advice']}. The bounds of predictions "
                "(`return_bounds`) hold all the same",
                ConvergenceWarning,
                stacklevel=3,
            )

    def predicted(self, rows: Any, *, variance: bool, bounds: bool) -> Predicted:
        """As of `DensePosterior`; variances are the middles of proven intervals."""
        # Means that are asked for alone have the same last bits with bounds beside them.
        alone = {} if variance else quantities(self.fitted, rows, ("mean",))
        if not (variance or bounds):
            return alone["mean"], None, None
        names = ("mean", "mean_error", "variance_lower", "variance_upper")
        known = quantities(self.fitted, rows, names, VarianceSettings(gap=VARIANCE_GAP, latent=True)) | alone
        # scikit-learn's variances have the kernel's own noise, and not `alpha`.
        lower, upper = (known[name][:, 0] for name in ("variance_lower", "variance_upper"))
        if self.white:
            lower, upper = outward(lower + self.white, upper + self.white)
        proven = (known["mean_error"], lower, upper)
        return known["mean"], 0.5 * (lower + upper) if variance else None, proven if bounds else None


def _shift_of(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """Return what is subtracted from inputs: their centre where only differences of inputs matter, else zero; (d,).

    The rounding of x - c is one of the two that every scaled coordinate is taken to have
    (`TileEvaluator.row_errors`), so that bounds hold for the inputs as they are.
    """
    if any(isinstance(part, Linear | Polynomial) for part in kernel.walk()):
        return np.zeros(rows.shape[1])
    centre = centre_of(ArrayInputs(rows))
    return np.zeros(rows.shape[1]) if centre is None else centre


def _unscaled(rows: FloatArray, targets: FloatArray, shift: FloatArray, workspace: Workspace) -> Dataset:
    """Samples as a data set without scaling; in a store if workers of other processes read it."""
    (n, d), t = rows.shape, targets.shape[1]
    standardisation = replace(Standardisation.identity(d, t), input_mean=shift)
    names = tuple(f"x{i}" for i in range(d)), tuple(f"y{i}" for i in range(t))
    client = ambient_client(n)
    if client is None or is_in_process(client):
        return assembled_dataset(standardisation.inputs(rows), targets, standardisation, *names, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of constant features, which stay as they are
        feature_names, target_names = names
        stored = dataset_from_arrays(
            workspace.url("training-set"), rows, targets, feature_names=feature_names, target_names=target_names
        )
    return stored.as_seen_by(feature_names, target_names, standardisation)


def _noise_of(white: float, alpha: Entries) -> Noise:
    """Return the noise of the samples: the least variance, and by how much each exceeds it, if they differ.

    Raises `InputError`: a sample without any noise.
    """
    values = np.asarray(alpha, dtype=np.float64)
    least = float(values.min())
    if not white + least > 0.0:
        raise InputError(
            f"alpha= is {least:g}, and the kernel has no WhiteKernel; beyond `dense_bytes` samples need noise. Give "
            "alpha= a positive value, or add a WhiteKernel"
        )
    return Noise(white + least, None if values.ndim == 0 or bool((values == least).all()) else values - least)
