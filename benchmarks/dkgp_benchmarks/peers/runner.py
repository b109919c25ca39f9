"""A sparse model of another library, fitted with given hyperparameters: a script for that library's own interpreter.

It knows nothing of dkgp, which may not be installed there: GPflow, for one, wants a NumPy that dkgp does not work with.
Reads a description from standard input and prints figures, both JSON; arrays go through .npz files. The kernel is
v exp(-sum gamma_j (x_j - z_j)^2), the mean zero, all in float64; variances are of the function, without the noise. Of
labels, 0 or 1 in place of targets, means are probabilities, and there is no noise.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

# Neighbours of GPBoost's Vecchia approximation of what the inducing points leave: as it comes, and with as many as come
# to the same accuracy with a fifth of the inducing points.
NEIGHBOURS, MORE_NEIGHBOURS = 30, 60

Found = tuple[Callable[[Any], tuple[Any, Any]], str]


def gpytorch_sgpr(given: Any, threads: int) -> Found:
    """GPyTorch's `InducingPointKernel` as it comes: it predicts with FITC's noise at the training samples."""
    import gpytorch
    import torch

    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float64)
    # As many as need be for Cholesky: what GPyTorch would else find by conjugate gradients, to a loose tolerance.
    gpytorch.settings.max_cholesky_size._set_value(10**9)
    gpytorch.settings.fast_computations.covar_root_decomposition._set_state(False)
    gpytorch.settings.fast_computations.log_prob._set_state(False)
    gpytorch.settings.fast_computations.solves._set_state(False)
    inputs, targets = torch.from_numpy(given["X"]), torch.from_numpy(given["y"])

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inputs.shape[1]))
            base.outputscale = float(given["variance"])
            base.base_kernel.lengthscale = torch.from_numpy(np.sqrt(0.5 / given["gamma"]))
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                base, inducing_points=torch.from_numpy(given["Z"]), likelihood=likelihood
            )

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = float(given["noise"])
    model = Model(likelihood)
    model.eval()

    def predict(rows: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            found = model(torch.from_numpy(rows))
            return found.mean.numpy(), found.variance.numpy()

    predict(given["T"][:2])
    return predict, "inducing points given; predicts as FITC does"


def gpflow_sgpr(given: Any, threads: int) -> Found:
    """GPflow's `SGPR`, its posterior's parts found once."""
    import gpflow
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    kernel = gpflow.kernels.SquaredExponential(
        variance=float(given["variance"]), lengthscales=np.sqrt(0.5 / given["gamma"])
    )
    data = (given["X"], given["y"][:, None])
    model = gpflow.models.SGPR(data, kernel, given["Z"], noise_variance=float(given["noise"]))
    posterior = model.posterior()

    def predict(rows: Any) -> tuple[Any, Any]:
        mean, variance = posterior.predict_f(tf.constant(rows))
        return mean.numpy()[:, 0], variance.numpy()[:, 0]

    predict(given["T"][:2])
    return predict, "inducing points given"


def _gpboost(
    given: Any, threads: int, approximation: str, likelihood: str = "gaussian", **more: Any
) -> Callable[[Any], tuple[Any, Any]]:
    import gpboost

    labels = likelihood != "gaussian"
    model = gpboost.GPModel(
        gp_coords=given["X"],
        cov_function="gaussian_ard",
        likelihood=likelihood,
        gp_approx=approximation,
        num_ind_points=int(given["m"]) if labels else len(given["Z"]),
        num_parallel_threads=threads,
        seed=1,
        **more,
    )
    noise = [] if labels else [given["noise"]]
    parameters = np.concatenate([noise, [given["variance"]], 1.0 / np.sqrt(given["gamma"])])

    def predict(rows: Any) -> tuple[Any, Any]:
        found = model.predict(
            y=given["y"], gp_coords_pred=rows, cov_pars=parameters, predict_var=True, predict_response=labels
        )
        return found["mu"], found["var"]

    return predict


def gpboost_fitc(given: Any, threads: int) -> Found:
    """GPBoost's FITC, as many inducing points, of its own choice."""
    return _gpboost(given, threads, "fitc"), "inducing points by k-means++; each call fits and predicts"


def gpboost_vif(given: Any, threads: int, neighbours: int = NEIGHBOURS) -> Found:
    """GPBoost's VIF: inducing points of its own choice, and Vecchia's approximation of what they leave."""
    return _gpboost(given, threads, "full_scale_vecchia", num_neighbors=neighbours), (
        f"inducing points by k-means++, {neighbours} neighbours; each call fits and predicts"
    )


def gpboost_labels(given: Any, threads: int) -> Found:
    """GPBoost's VIF of labels by Laplace's approximation, with Cholesky factors or by its iterative methods."""
    inversion, neighbours = str(given["inversion"]), int(given["neighbours"])
    found = _gpboost(
        given, threads, "vif", "bernoulli_logit", num_neighbors=neighbours, matrix_inversion_method=inversion
    )
    return found, f"inducing points by k-means++, {neighbours} neighbours, {inversion}; each call fits and predicts"


PEERS: dict[str, Callable[[Any, int], Found]] = {
    "gpytorch-sgpr": gpytorch_sgpr,
    "gpflow-sgpr": gpflow_sgpr,
    "gpboost-fitc": gpboost_fitc,
    "gpboost-vif": gpboost_vif,
    f"gpboost-vif-{MORE_NEIGHBOURS}": partial(gpboost_vif, neighbours=MORE_NEIGHBOURS),
}


# Of labels, for `dkgp bench classify`.
LABEL_PEERS: dict[str, Callable[[Any, int], Found]] = {"gpboost-labels": gpboost_labels}


def main() -> None:
    """Read a description, run it, print the figures on the last line."""
    description = json.load(sys.stdin)
    peer = description["peer"]
    with np.load(description["problem"], allow_pickle=False) as archive:
        given = {name: archive[name] for name in archive.files}
    began = time.perf_counter()
    __import__(peer.partition("-")[0])
    imported, processor_began = time.perf_counter(), time.process_time()
    predict, said = (PEERS | LABEL_PEERS)[peer](given, description["threads"])
    fitted = time.perf_counter()
    mean, variance = predict(given["T"])
    finished, processor_seconds = time.perf_counter(), time.process_time() - processor_began
    np.savez(description["predictions"], mean=np.reshape(mean, (-1, 1)), variance=np.asarray(variance))
    figures = {
        "m": len(given["Z"]) if "Z" in given else int(given["m"]),
        "import_seconds": imported - began,
        "solve_seconds": fitted - imported,
        "predict_seconds": finished - fitted,
        "seconds": finished - imported,
        "processor_seconds": processor_seconds,
        "note": f"{metadata.version(peer.partition('-')[0])}; {said}",
        "peak_memory_bytes": _peak_bytes(),
    }
    print(json.dumps(figures))


def _peak_bytes() -> int:
    """Largest resident set of this process; 0 where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    main()
