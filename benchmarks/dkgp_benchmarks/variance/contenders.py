"""The contenders of `dkgp bench variance`, each in a process of its own: dkgp, LAPACK's Cholesky, a plain NumPy pass.

`python -m dkgp_benchmarks.variance.contenders` reads a description from standard input and prints figures, both JSON.
All of them work on one model store, whose kernel, noise variance and support inputs are what variances depend on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.contenders import assemble, factor_in_place, forward_substitute, kernel_columns, kernel_product
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import ModelRecord, open_dataset, open_model
from dkgp.kernels import kernel_from_json
from dkgp.models import Hyperparameters
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.settings import VarianceSettings

FloatArray = NDArray[np.float64]

# Enough to run all the code there is, and next to no work.
WARM_UP_RANK = 8
# Right-hand sides that the reference solves for at a time.
SOLVED_TOGETHER = 512


def variances(description: dict[str, Any], model: ModelRecord) -> dict[str, Any]:
    """Variances as `dkgp predict --variance` computes them, means beside them, to a prediction store."""
    test = open_dataset(description["test"])
    settings = VarianceSettings(**description["settings"])
    notes: list[tuple[float, str]] = []
    reporter = SilentReporter()
    with open_executor(ClusterOptions(**description["cluster"]), test.n_samples, reporter) as executor:
        # Compiled code is loaded here and in the workers before the clock starts.
        warm = VarianceSettings(gap=settings.gap, max_passes=0.0, rank=min(WARM_UP_RANK, model.n_samples))
        predict(model, test, description["warm_out"], executor, variance=warm)
        began = time.perf_counter()
        summary = predict(
            model,
            test,
            description["out"],
            executor,
            variance=settings,
            # Said once landmarks are chosen and the factor stands: what all samples share ends there.
            note=lambda message: notes.append((time.perf_counter(), message)),
        )
        seconds = time.perf_counter() - began
    assert summary.variance is not None
    shared_seconds = notes[0][0] - began if notes else 0.0
    return {
        **summary.variance,
        "cluster_warnings": reporter.warnings,
        "seconds": seconds,
        "shared_seconds": shared_seconds,
        "seconds_per_sample": seconds / test.n_samples,
        "seconds_per_sample_after_factor": (seconds - shared_seconds) / test.n_samples,
        "notes": [message for _, message in notes],
    }


def cholesky(description: dict[str, Any], model: ModelRecord) -> dict[str, Any]:
    """LAPACK and BLAS: the kernel matrix factored in place, and one triangular solve for each test sample."""
    test = open_dataset(description["test"])
    test = test.as_seen_by(model.feature_names, model.target_names, model.standardisation)
    found = _hyperparameters(model)
    began = time.perf_counter()
    inputs = _support(model)
    matrix = assemble(inputs, found)
    assembled = time.perf_counter()
    factor_in_place(matrix)
    factored = time.perf_counter()
    exact = np.empty(test.n_samples)
    for start in range(0, test.n_samples, SOLVED_TOGETHER):
        rows = test.inputs(start, min(start + SOLVED_TOGETHER, test.n_samples))
        columns = kernel_columns(inputs, rows, found)
        forward_substitute(matrix, columns)
        explained = np.einsum("it,it->t", columns, columns)
        exact[start : start + len(rows)] = found.kernel.diagonal(rows) + found.noise_variance - explained
    finished = time.perf_counter()
    np.save(description["exact"], exact, allow_pickle=False)
    return {
        "seconds": finished - began,
        "assembly_seconds": assembled - began,
        "factor_seconds": factored - assembled,
        "solve_seconds": finished - factored,
        "shared_seconds": factored - began,
        "seconds_per_sample": (finished - began) / test.n_samples,
        "seconds_per_sample_after_factor": (finished - factored) / test.n_samples,
    }


def plain_pass(description: dict[str, Any], model: ModelRecord) -> dict[str, Any]:
    """One float64 pass over the kernel matrix, K @ v, in tiles that are thrown away."""
    inputs, found = _support(model), _hyperparameters(model)
    vector = np.random.default_rng(0).standard_normal((len(inputs), 1))
    began = time.perf_counter()
    product = kernel_product(inputs, inputs, vector, found)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "checksum": float(np.abs(product).sum())}


CONTENDERS: dict[str, Callable[[dict[str, Any], ModelRecord], dict[str, Any]]] = {
    "variances": variances,
    "cholesky": cholesky,
    "plain_pass": plain_pass,
}


def _support(model: ModelRecord) -> FloatArray:
    return model.inputs(0, model.n_samples)


def _hyperparameters(model: ModelRecord) -> Hyperparameters:
    return Hyperparameters(kernel_from_json(model.kernel), model.noise_variance)


def main() -> None:
    """Read a description, run it, print the figures."""
    description = json.load(sys.stdin)
    model = open_model(description["model"])
    with PeakMemory() as memory:
        figures = CONTENDERS[description["contender"]](description, model)
        figures["peak_memory_bytes"] = memory.bytes
    print(dump(figures))


if __name__ == "__main__":
    main()
