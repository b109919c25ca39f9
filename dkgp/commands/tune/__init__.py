"""`dkgp tune`: hyperparameters by maximum likelihood on random subsets of a store, or a sparse model of all of it."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.tune.bound import BoundRun
from dkgp.commands.tune.job import TuneJob
from dkgp.commands.tune.kernels import AUTO_KERNEL, KernelsRun
from dkgp.commands.tune.run import TuneRun

__all__ = ["TuneJob", "run_tune"]


def run_tune(job: TuneJob, reporter: Reporter) -> Document:
    """Tune and write the hyperparameter file; return its content and where it is. See `Run.run`."""
    if job.kernel is not None and job.kernel.strip() == AUTO_KERNEL:
        return KernelsRun(job, reporter).run()
    return (TuneRun if job.evidence is None else BoundRun)(job, reporter).run()
