"""One size of `dkgp bench growth` in a process of its own: training as `dkgp train` does, then entries timed.

`python -m dkgp_benchmarks.growth.run` reads a description from standard input. It prints a JSON object a line: progress
as it comes ("round" or "within"), what is said ("note", "warning"), and in the end the figures ("figures") or "error".
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.outputs import plain
from dkgp.commands.reporting.progress import Measure, SilentReporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob
from dkgp.commands.tuned import run_train
from dkgp.data import open_dataset, open_model
from dkgp.errors import DkgpError
from dkgp.kernels import kernel_from_json
from dkgp.models import read_hyperparameters
from dkgp.models.exact import train
from dkgp.plan.validation import entry_seconds
from dkgp.solvers import Progress as SolveProgress

MODULE = "dkgp_benchmarks.growth.run"


class _LineReporter(SilentReporter):
    """Tells the process that started this one what goes on."""

    def note(self, message: str, figures: str | None = None) -> None:
        """Pass it on."""
        _say(note=message)

    def warn(self, message: str) -> None:
        """Pass it on."""
        super().warn(message)
        _say(warning=message)

    @contextmanager
    def solve(
        self, label: str, tolerance: float, measure: Measure = "gradient_inf_norm"
    ) -> Iterator[Callable[[SolveProgress | WorkProgress], None]]:
        """Pass on rounds, and work within a round as often as anybody could read it."""
        reported_at = 0.0

        def update(progress: SolveProgress | WorkProgress) -> None:
            nonlocal reported_at
            if isinstance(progress, SolveProgress):
                _say(round=progress.to_json())
            elif time.monotonic() >= reported_at + 1.0 or progress.done == progress.total:
                reported_at = time.monotonic()
                _say(within=vars(progress))

        yield update


def _say(**content: Any) -> None:
    print(json.dumps(plain(content)), flush=True)


def train_size(description: dict[str, Any]) -> dict[str, Any]:
    """Train, or go on with it; return what it took in all."""
    job = TrainJob(
        description["train"],
        description["hyper"],
        description["model"],
        solver=SolverOptions(**description["solver"]),
        cluster=ClusterOptions(**description["cluster"]),
    )
    _load_code(job, description["warm"])
    trained = run_train(replace(job, resume=job.begun), _LineReporter())
    model = open_model(description["model"])
    kernel = kernel_from_json(model.kernel)
    parts: dict[str, float] = {}
    for record in model.history:
        for name, seconds in record["timings"].items():
            parts[name] = parts.get(name, 0.0) + seconds
    names = ("converged", "iterations", "column_passes", "kernel_evaluations", "refreshes", "seconds")
    return {
        "n": model.n_samples,
        **{name: trained[name] for name in (*names, "gradient_inf_norm", "peak_memory_bytes", "solver", "settings")},
        "parts": parts,
        "entry_seconds": entry_seconds(kernel, "single"),
        "entry_double_seconds": entry_seconds(kernel, "double"),
        "cores": available_cores(),
    }


def _load_code(job: TrainJob, warm: str) -> None:
    """Have compiled code at hand before the clock starts: of the solver, on a few samples."""
    dataset, few = open_dataset(job.dataset), open_dataset(warm)
    hyper = read_hyperparameters(job.hyper, n_features=dataset.n_features)
    name = job.solver.decided(dataset, hyper)[0].solver
    options = SolverOptions(name, precision=job.solver.precision)
    with open_executor(job.cluster, few.n_samples) as executor:
        solver = options.build(few.n_samples, few.n_features, few.n_targets, SilentReporter())
        train(few, hyper.kernel, hyper.noise_variance, executor, solver=solver, stopping=options.stopping())


def main() -> None:
    """Read a description, run it, tell how it goes."""
    try:
        _say(figures=train_size(json.load(sys.stdin)))
    except DkgpError as error:
        where = getattr(error, "checkpoint", None)
        _say(error=str(error), exit_code=int(error.exit_code), checkpoint=None if where is None else str(where))


if __name__ == "__main__":
    main()
