"""Figures 5 and 6: compressed sensing. Spikes from fewer measurements than numbers; X'X is never formed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.operators import ArrayInputs
from dkgp.operators.base import FloatArray
from dkgp.progress import Progress
from dkgp.solvers.pursuit.engine import PursuitSettings, pursue
from dkgp.solvers.pursuit.rivals import homotopy
from dkgp.solvers.pursuit.systems import RowSystem
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shape:
    """Measurements, numbers of the signal, spikes."""

    measurements: int = 1024
    numbers: int = 4096
    spikes: int = 160

    def of(self, numbers: int | None) -> Shape:
        """Return the same proportions with so many numbers; itself where there is no wish."""
        if numbers is None:
            return self
        share = numbers / self.numbers
        return Shape(max(1, round(share * self.measurements)), numbers, max(1, round(share * self.spikes)))


SHAPE = Shape()
# Of Figure 5, which is Figueiredo and others' (2007).
VARIANCE = 1e-4
VARIANCES = (1e-6, 1e-5, 1e-4, 5e-4, 1e-3, 2e-3, 4e-3, 1e-2)
DRAWS, PAPER_DRAWS = 3, 100
# lambda of the LASSO: this share of max |X'y|, as there.
LEVEL = 0.1


@dataclass(frozen=True)
class _Signal:
    X: FloatArray
    y: FloatArray
    w: FloatArray


def _signal(shape: Shape, variance: float, seed: list[int]) -> _Signal:
    """Rows of a Gaussian matrix made orthonormal; spikes of +-1 at random places; noise."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((shape.measurements, shape.numbers))
    w = np.zeros(shape.numbers)
    places = generator.choice(shape.numbers, shape.spikes, replace=False)
    w[places] = generator.choice((-1.0, 1.0), shape.spikes)
    Q, _ = np.linalg.qr(rows.T)
    X = np.ascontiguousarray(Q.T)
    noise = np.sqrt(variance) * generator.standard_normal(shape.measurements)
    return _Signal(X, X @ w + noise, w)


def _recovered(signal: _Signal, w: FloatArray, spikes: int) -> bool:
    """True if so many largest numbers of w are where the signal's spikes are: the thresholding that is meant here."""
    largest = np.argsort(-np.abs(w), kind="stable")[:spikes]
    return bool(np.all(signal.w[largest] != 0.0) and np.all(w[largest] != 0.0))


def _scdp(signal: _Signal, variance: float, shape: Shape, executor: BlockExecutor) -> tuple[FloatArray, int]:
    """The path until the residual is as large as the noise, and no longer than twice the spikes."""
    system = RowSystem(ArrayInputs(signal.X), executor)
    limit = max(shape.measurements * variance, 1e-20 * float(signal.y @ signal.y))
    path = pursue(system, signal.y, PursuitSettings(size=2 * shape.spikes, residual=limit))
    return path.solution()[:, 0], len(path)


def _lasso(signal: _Signal, executor: BlockExecutor) -> FloatArray:
    """The LASSO's solution at lambda = LEVEL max |X'y|, by its path: exact, and without X'X."""
    system = RowSystem(ArrayInputs(signal.X), executor)
    until = LEVEL * float(np.abs(signal.X.T @ signal.y).max())
    return homotopy(system, signal.y, until=until).at(until)


def figure_5(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """One signal, what SCDP makes of it, and the least squares solution of smallest length."""
    executor = LocalExecutor()
    with reporter.work("figure 5: one signal"):
        signal = _signal(SHAPE, VARIANCE, [job.seed, 5])
        w, support = _scdp(signal, VARIANCE, SHAPE, executor)
        lasso = _lasso(signal, executor)
    executor.close()
    shortest = signal.X.T @ signal.y  # the rows are orthonormal
    mended = np.zeros_like(w)
    S = np.flatnonzero(lasso)
    mended[S] = np.linalg.lstsq(signal.X[:, S], signal.y, rcond=None)[0]
    solutions = {"SCDP": w, "LASSO": lasso, "LASSO, de-biased": mended, "least squares": shortest}
    rows: list[dict[str, Any]] = []
    for name, values in solutions.items():
        error = float(np.mean((values - signal.w) ** 2))
        rows.append({"data": _said(SHAPE), "method": name, "what": "mean squared error of w", "value": error})
    figures = {
        "SCDP finds all spikes": "yes" if _recovered(signal, w, SHAPE.spikes) else "no",
        "LASSO finds all spikes": "yes" if _recovered(signal, lasso, SHAPE.spikes) else "no",
        "least squares finds all spikes": "yes" if _recovered(signal, shortest, SHAPE.spikes) else "no",
        "nonzero numbers of SCDP": support,
        "nonzero numbers of the LASSO": len(S),
    }
    curves = {"signal": signal.w.tolist(), **{name: values.tolist() for name, values in solutions.items()}}

    def draw(figure: Figure) -> None:
        panels = figure.subplots(3, 1, sharex=True)
        shown = {"signal": signal.w, "SCDP": w, "least squares": shortest}
        for panel, (name, values) in zip(panels, shown.items(), strict=True):
            where = np.flatnonzero(values) if name != "least squares" else np.arange(len(values))
            panel.vlines(where, 0.0, values[where], linewidth=0.7)
            panel.axhline(0.0, color="0.6", linewidth=0.5)
            panel.set(title=name, ylabel="w")
        panels[-1].set_xlabel("number")

    title = f"{SHAPE.spikes} spikes from {SHAPE.measurements:,} measurements of {SHAPE.numbers:,} numbers"
    return PaperFigure(title, rows, figures, curves, draw, width=9.0, height=7.0)


def _said(shape: Shape) -> str:
    return f"{shape.measurements:,} x {shape.numbers:,}, {shape.spikes} spikes"


def _both(variance: float, shape: Shape, seed: list[int], executor: BlockExecutor) -> Document:
    """True for each method that recovers a signal."""
    signal = _signal(shape, variance, seed)
    w, _ = _scdp(signal, variance, shape, executor)
    lasso = _lasso(signal, executor)
    return {"SCDP": _recovered(signal, w, shape.spikes), "LASSO": _recovered(signal, lasso, shape.spikes)}


def figure_6(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """Share of signals recovered by noise variance."""
    draws, shape = job.repeats(DRAWS, PAPER_DRAWS), SHAPE.of(job.n)
    found = {name: np.zeros((len(VARIANCES), draws)) for name in ("SCDP", "LASSO")}
    executor = LocalExecutor()
    with reporter.work("figure 6: signals") as show:
        for level, variance in enumerate(VARIANCES):
            for number in range(draws):
                seed = [job.seed, 6, number]
                # All draws are hours: one that is interrupted goes on.
                said = job.keep(f"{variance:g}-{number}", partial(_both, variance, shape, seed, executor))
                for name, recovered in said.items():
                    found[name][level, number] = recovered
                show(Progress("signals", level * draws + number + 1, len(VARIANCES) * draws, "signals"))
    executor.close()
    shares = {name: values.mean(axis=1) for name, values in found.items()}
    rows = [
        {
            "data": f"{_said(shape)}, {draws} draws",
            "method": name,
            "what": f"recovered at variance {variance:g}",
            "value": float(share),
            "paper": "all" if variance == VARIANCES[0] else "",
        }
        for name, values in shares.items()
        for variance, share in zip(VARIANCES, values, strict=True)
    ]
    figures = {f"{name} recovers at the smallest variance": float(values[0]) for name, values in shares.items()}
    figures["largest difference of the two"] = float(np.abs(shares["SCDP"] - shares["LASSO"]).max())
    curves = {"variances": list(VARIANCES), **{name: values.tolist() for name, values in shares.items()}}

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        for name, marker in (("SCDP", "o-"), ("LASSO", "s--")):
            panel.semilogx(VARIANCES, 100.0 * shares[name], marker, label=name)
        panel.set(xlabel="noise variance", ylabel="recovered, %", ylim=(-4, 104))
        panel.grid(alpha=0.3)
        panel.legend()

    title = f"share of {draws} signals whose {shape.spikes} largest numbers are where the spikes are"
    remarks = [
        f'Recovered: the {shape.spikes} numbers of largest size are where the spikes are. The paper says "after '
        'appropriate thresholding", and no more. SCDP ends where the squared residual is that of the noise.'
    ]
    return PaperFigure(title, rows, figures, curves, draw, width=7.0, height=5.0, remarks=remarks)
