"""One program's kriging of a problem in a file, in a process of its own with a limit of memory.

    python -m dkgp_benchmarks.kriging.contender NAME PROBLEM.npz OUT.npz GIB

Prints seconds and peak memory as JSON, or the error with which the program stops. The variogram is exponential with
partial sill 1 and the range and nugget of the problem; means and variances are of an observation. Universal kriging
with a linear drift; programs of `RESIDUAL` krige what the known trend leaves, with the kind of kriging named there.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from dkgp_benchmarks.kriging.problem import NUGGET, RANGE, SLOPE

Predictions = tuple[Any, Any]
# Neighbours of GPBoost's Vecchia approximation: its default for predictions is twice the first.
NEIGHBOURS = 30


def pykrige(x: Any, z: Any, points: Any) -> Predictions:
    """PyKrige's universal kriging, without the statistics of its constructor, which take n^4 operations."""
    from pykrige import uk

    none = np.zeros(2), np.ones(2), np.zeros(2)
    with mock.patch.object(uk, "_find_statistics", return_value=none):
        kriging = uk.UniversalKriging(
            *x.T,
            z,
            variogram_model="exponential",
            variogram_parameters={"psill": 1.0, "range": 3.0 * RANGE, "nugget": NUGGET},
            drift_terms=["regional_linear"],
            exact_values=False,
        )
    mean, variance = kriging.execute("points", *points.T)
    return np.asarray(mean), np.asarray(variance)


def gstools(x: Any, z: Any, points: Any) -> Predictions:
    """Universal kriging of GSTools, with a linear drift."""
    import gstools as gs

    model = gs.Exponential(dim=2, var=1.0, len_scale=RANGE, nugget=NUGGET)
    mean, variance = gs.krige.Universal(model, tuple(x.T), z, "linear")(tuple(points.T))
    return mean, variance


def gpboost(x: Any, z: Any, points: Any) -> Predictions:
    """GPBoost's Vecchia approximation, of residuals of the known trend, with known hyperparameters."""
    import gpboost

    model = gpboost.GPModel(
        gp_coords=x,
        cov_function="exponential",
        gp_approx="vecchia",
        num_neighbors=NEIGHBOURS,
        likelihood="gaussian",
        seed=1,
    )
    found = model.predict(
        y=z - SLOPE * x[:, 0],
        gp_coords_pred=points,
        cov_pars=np.array([NUGGET, 1.0, RANGE]),
        predict_var=True,
        predict_response=True,
    )
    return found["mu"] + SLOPE * points[:, 0], found["var"]


def pykrige_window(x: Any, z: Any, points: Any) -> Predictions:
    """PyKrige's ordinary kriging in a moving window, of residuals of the known trend."""
    from pykrige import ok

    none = np.zeros(2), np.ones(2), np.zeros(2)
    with mock.patch.object(ok, "_find_statistics", return_value=none):
        kriging = ok.OrdinaryKriging(
            *x.T,
            z - SLOPE * x[:, 0],
            variogram_model="exponential",
            variogram_parameters={"psill": 1.0, "range": 3.0 * RANGE, "nugget": NUGGET},
            exact_values=False,
        )
    mean, variance = kriging.execute("points", *points.T, n_closest_points=NEIGHBOURS, backend="loop")
    return np.asarray(mean) + SLOPE * points[:, 0], np.asarray(variance)


def gstlearn(x: Any, z: Any, points: Any) -> Predictions:
    """Simple kriging of gstlearn in a moving neighbourhood, of residuals of the known trend."""
    import gstlearn as gl

    def table(columns: Any, names: list[str]) -> Any:
        roles = ["x1", "x2", "z1"][: len(names)]
        return gl.Db.createFromSamples(len(columns[0]), gl.ELoadBy.COLUMN, np.concatenate(columns), names, roles)

    samples, targets = table([*x.T, z - SLOPE * x[:, 0]], ["x", "y", "z"]), table([*points.T], ["x", "y"])
    # Its range is the distance at which the correlation is .05.
    model = gl.Model.createFromParam(gl.ECov.EXPONENTIAL, np.log(20.0) * RANGE, 1.0)
    model.addCovFromParam(gl.ECov.NUGGET, 0.0, NUGGET)
    model.setMeans([0.0])
    gl.kriging(samples, targets, model, gl.NeighMoving.create(False, NEIGHBOURS, 10.0), True, True)
    mean, deviation = (np.asarray(targets.getColumn(f"Kriging.z.{name}")) for name in ("estim", "stdev"))
    return mean + SLOPE * points[:, 0], deviation**2


PEERS: dict[str, Callable[[Any, Any, Any], Predictions]] = {
    "pykrige": pykrige,
    "gstools": gstools,
    "gpboost": gpboost,
    "pykrige-window": pykrige_window,
    "gstlearn": gstlearn,
}
MODULES = {
    "pykrige": ("pykrige.uk",),
    "gstools": ("gstools.krige",),
    "gpboost": ("gpboost",),
    "pykrige-window": ("pykrige.ok",),
    "gstlearn": ("gstlearn",),
}
# Programs that krige residuals of the known trend, and their kind of kriging.
RESIDUAL = {"gpboost": "simple", "gstlearn": "simple", "pykrige-window": "ordinary"}


def main(name: str, problem: str, out: str, limit: float) -> None:
    """Predict by a program, and print its figures."""
    size = int(limit * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    given = np.load(problem)
    figures: dict[str, Any]
    try:
        for module in MODULES[name]:
            importlib.import_module(module)
        began = time.perf_counter()
        mean, variance = PEERS[name](given["places"], given["values"], given["points"])
        seconds = time.perf_counter() - began
        np.savez(out, mean=mean, variance=variance)
        figures = {"seconds": seconds, "version": metadata.version(name.removesuffix("-window"))}
    except Exception as error:  # whichever error a program stops with is its result
        figures = {"stopped": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps({**figures, "peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Return this process's largest memory; of Linux, that of this program alone and not of the one that began it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
