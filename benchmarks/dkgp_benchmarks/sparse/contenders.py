"""The contenders of `dkgp bench sparse`, each in a process of its own: sparse models, the exact one, bare BLAS.

`python -m dkgp_benchmarks.sparse.contenders` reads a description from standard input and prints figures, both JSON.
Means and variances at the test samples, of the function, on the standardised scale, go to a file beside them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.threads import available_cores, in_parallel, single_threaded_blas
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset, open_model, open_prediction, save_model
from dkgp.kernels import TileEvaluator
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.exact import TrainedModel, train
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.sparse.near import NearPredictor
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.train import train_sparse
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.blas import blas
from dkgp_benchmarks.sparse.peers import peer_model

FloatArray = NDArray[np.float64]

# Rows of a piece, as sums over samples take them, and the share of all products that is timed and scaled up.
PIECE, TIMED_SHARE = 1024, 0.125
# Basis sizes of a greedy choice whose products are timed, of all rounds.
SIZES_TIMED = 5
WARM_BASIS = 32
# How narrow the exact model's proven intervals of variances are.
VARIANCE_GAP = 0.02
PREDICTED_TOGETHER = 1024


def sparse_model(description: dict[str, Any], dataset: Dataset, found: Hyperparameters) -> dict[str, Any]:
    """A sparse model as `dkgp sparse` trains it, and its predictions."""
    settings, reporter = SparseSettings(**description["settings"]), SilentReporter()
    warm = open_dataset(description["warm"])
    few = replace(settings, basis_size=min(WARM_BASIS, settings.basis_size, warm.n_samples), per_round=None)
    with open_executor(ClusterOptions(**description["cluster"]), dataset.n_samples, reporter) as executor:
        # Compiled code is loaded here and in the workers before the clock starts.
        train_sparse(warm, found.kernel, found.noise_variance, executor, few)
        processor_began = processor_seconds()
        trained = train_sparse(dataset, found.kernel, found.noise_variance, executor, settings)
    parts = trained.summary["seconds_by_part"]
    solve_seconds = parts["fit"] + parts.get("neighbours", 0.0)
    figures = {
        "m": trained.model.m,
        "seconds": parts["choice"] + solve_seconds,
        "choose_seconds": parts["choice"],
        "solve_seconds": solve_seconds,
        "certify_seconds": trained.summary["seconds"] - parts["choice"] - solve_seconds,
        "rms_bound": float(max(trained.certificate.rms_bound)),
        "bound": trained.certificate.best[0],
        "risk": float(sum(trained.certificate.risk)),
        "gap": gap if np.isfinite(gap := float(max(trained.certificate.gap))) else None,
        "elbo": trained.summary["elbo"],
        "rounds": trained.summary["rounds"],
        "cluster_warnings": reporter.warnings,
    }
    if description.get("test") is None:
        return figures
    inputs = _inputs(open_dataset(description["test"]))
    began = time.perf_counter()
    model, near = trained.model, trained.near
    by_near = None if near is None else NearPredictor(model.kernel, model.prototypes, model.lower, near)
    predictions = []
    for start in range(0, len(inputs), PREDICTED_TOGETHER):
        rows = inputs[start : start + PREDICTED_TOGETHER]
        of_rows = (model.mean(rows), model.variance(rows)) if by_near is None else by_near.predicted(rows, None)[:2]
        predictions.append(of_rows)
    mean, variance = (np.concatenate(values) for values in zip(*predictions, strict=True))
    figures["predict_seconds"] = time.perf_counter() - began
    figures["processor_seconds"] = processor_seconds() - processor_began
    figures["all_seconds"] = figures["seconds"] + figures["predict_seconds"]
    np.savez(description["predictions"], mean=mean, variance=variance)
    return figures


def exact(description: dict[str, Any], dataset: Dataset, found: Hyperparameters) -> dict[str, Any]:
    """The exact model as `dkgp train` finds it, and `dkgp predict`'s variances, the upper ends of proven intervals."""
    options, reporter = SolverOptions(), SilentReporter()
    test, place = open_dataset(description["test"]), Path(description["predictions"])
    with open_executor(ClusterOptions(**description["cluster"]), dataset.n_samples, reporter) as executor:

        def solved(data: Dataset) -> TrainedModel:
            decided, _ = options.decided(data, found)
            solver = decided.build(data.n_samples, data.n_features, data.n_targets, reporter)
            stopping = decided.stopping()
            return train(data, found.kernel, found.noise_variance, executor, solver=solver, stopping=stopping)

        solved(open_dataset(description["warm"]))
        began, processor_began = time.perf_counter(), processor_seconds()
        trained = solved(dataset)
        seconds = time.perf_counter() - began
        # Its copy, where the noise is wanted, writes the same.
        model = str(place.with_suffix(".model.zarr"))
        save_model(
            model,
            kernel=trained.kernel.to_json(),
            noise_variance=trained.noise_variance,
            alpha=trained.solution.alpha,
            dataset=dataset,
            certificate=trained.certificate.to_json(),
            summary=trained.summary,
            overwrite=True,
        )
        began, out = time.perf_counter(), str(place.with_suffix(".zarr"))
        settings = VarianceSettings(gap=VARIANCE_GAP, latent=True)
        predict(open_model(model), test, Destination(out, overwrite=True), executor, variance=settings)
        predict_seconds = time.perf_counter() - began
        taken = processor_seconds() - processor_began
    prediction, scale = open_prediction(out), dataset.standardisation
    mean = (prediction.read("mean") - scale.target_mean) / scale.target_std
    variance = prediction.read("variance")[:, 0] / scale.target_std[0] ** 2
    np.savez(place, mean=mean, variance=variance)
    return {
        "m": dataset.n_samples,
        "seconds": seconds,
        "solve_seconds": seconds,
        "predict_seconds": predict_seconds,
        "all_seconds": seconds + predict_seconds,
        "processor_seconds": taken,
        "rms_bound": 0.0,
        "cluster_warnings": reporter.warnings,
    }


def processor_seconds() -> float:
    """Return the processor seconds of this process's threads and of its ended child processes."""
    taken = os.times()
    return taken.user + taken.system + taken.children_user + taken.children_system


def peer(description: dict[str, Any], dataset: Dataset, found: Hyperparameters) -> dict[str, Any]:
    """Another library's model, by the interpreter that has it."""
    figures = peer_model(description, dataset, found)
    return {**figures, "all_seconds": figures["seconds"]}


def bare_blas(description: dict[str, Any], dataset: Dataset, found: Hyperparameters) -> dict[str, Any]:
    """Seconds of BLAS alone for the operations of a fit and of greedy scores, and of the kernel's tiles, on all cores.

    `gemm_seconds` are of 2 n m^2 floating-point operations, n m^2 multiply-adds: those of F'F, or of its one triangle
    and the triangular solve. `scores` has for each name the choices and the scored candidates of a round; its products
    are those of the candidates' columns with the basis', 2 n k q a round.
    """
    n, m, threads = dataset.n_samples, description["basis_size"], available_cores()
    generator = np.random.default_rng(0)
    piece = np.asfortranarray(generator.standard_normal((m, PIECE)))
    evaluator = TileEvaluator(found.kernel, "double")
    inputs = _inputs(dataset)
    basis = evaluator.prepare(inputs[:m])

    def tiles(index: int) -> None:
        for start in range(index * PIECE, n, threads * PIECE):
            evaluator.tile(basis, evaluator.prepare(inputs[start : start + PIECE]))

    with single_threaded_blas():
        evaluator.tile(basis, evaluator.prepare(inputs[:PIECE]))
        gemm_seconds = _products(piece, piece, n, threads)
        began = time.perf_counter()
        in_parallel(tiles, threads)
        tile_seconds = time.perf_counter() - began
        scores = {}
        for name, (per_round, scored) in description["scores"].items():
            rounds = -(-m // per_round)
            candidates = np.asfortranarray(generator.standard_normal((scored, PIECE)))
            sizes = np.linspace(per_round, max(per_round, m - per_round), SIZES_TIMED).astype(int)
            each = [_products(np.asfortranarray(piece[:size]), candidates, n, threads) for size in sizes]
            scores[name] = rounds * float(np.mean(each))
    return {"seconds": gemm_seconds + tile_seconds, "gemm_seconds": gemm_seconds, "tile_seconds": tile_seconds} | {
        "score_seconds": scores
    }


def _products(left: FloatArray, right: FloatArray, n: int, threads: int) -> float:
    """Seconds of A B' for pieces that have n rows in all, of which a share is timed; on so many threads."""
    m, rows, q = len(left), int(left.shape[1]), len(right)
    pieces = -(-n // rows)
    timed = max(1, round(TIMED_SHARE * pieces / threads))
    sums = [np.zeros((m, q), order="F") for _ in range(threads)]

    def work(index: int) -> None:
        for _ in range(timed):
            blas("gemm", b"N", b"T", m, q, rows, 1.0, left, m, right, q, 1.0, sums[index], m)

    began = time.perf_counter()
    in_parallel(work, threads)
    return (time.perf_counter() - began) * (n / (timed * threads * rows))


CONTENDERS: dict[str, Callable[[dict[str, Any], Dataset, Hyperparameters], dict[str, Any]]] = {
    "sparse": sparse_model,
    "exact": exact,
    "bare": bare_blas,
    "peer": peer,
}


def _inputs(dataset: Dataset) -> FloatArray:
    return dataset.inputs(0, dataset.n_samples)


def main() -> None:
    """Read a description, run it, print the figures."""
    description = json.load(sys.stdin)
    dataset = open_dataset(description["train"])
    found = read_hyperparameters(description["hyper"], n_features=dataset.n_features)
    with PeakMemory() as memory:
        figures = CONTENDERS[description["contender"]](description, dataset, found)
        # A peer's process has its own.
        figures.setdefault("peak_memory_bytes", memory.bytes)
    print(dump(figures))


if __name__ == "__main__":
    main()
