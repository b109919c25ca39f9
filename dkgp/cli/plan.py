"""`dkgp plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dkgp.cli.command import JobCommand

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["plan"]


class _PlanCommand(JobCommand):
    def run(self, job: Any, reporter: Reporter) -> Document:
        """Plan; where that is asked for, train and compare as well."""
        from dkgp.plan.plan import run_plan

        if not job.validate:
            return run_plan(job, reporter)
        from dkgp.bench.scaling.validate import validate

        return run_plan(job, reporter, validate)


plan = _PlanCommand(
    "plan",
    """Say what training on the store DATASET will take, for 1 to 256 workers.

    Settles the solver as `train` would, foresees its products or passes from a probe of the samples, measures this
    machine and the round trip to the scheduler given (or between processes here), and lays the work out. Refuses what
    `train` would refuse. Nothing is written but what is asked for. It plans for workers with a machine like this one
    each; the time is that of the solve, without waiting for a cluster to start.
    """,
    (
        "dkgp plan train.zarr --hyper hyper.json",
        "dkgp plan train.zarr --hyper hyper.json --workers 1,2,4,8 --threads-per-worker 8 --figures machine.json",
        "dkgp plan train.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot plan.png",
        "dkgp plan train.zarr --hyper hyper.json --variance --test-samples 5000 --variance-gap 0.01",
        "dkgp plan train.zarr --hyper hyper.json --sparse vfe --basis-size 2000",
        "dkgp plan labelled.zarr --hyper hyper.json --classify profile --pool 3000",
        "dkgp plan labelled.zarr --hyper hyper.json --classify logistic",
        "dkgp plan train.zarr --hyper hyper.json --workers 1,4,16 --cache-tiles 8GiB",
        "dkgp plan train.zarr --hyper hyper.json --validate",
    ),
    module="dkgp.plan.plan",
)
