"""`dkgp bench scaling`: products and whole solves on 1, 2, ... worker processes, and what the cost model says of them.

They are measured as `dkgp plan --validate` measures them (`dkgp.plan.validation`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from dkgp.bench.problem import BenchProblem, ProblemJob
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import Column, report, write_record
from dkgp.commands.reporting.progress import Reporter, SilentReporter
from dkgp.data import open_dataset
from dkgp.errors import UsageError
from dkgp.models import read_hyperparameters
from dkgp.plan.figures import measure_machine
from dkgp.plan.foreseen import foresee
from dkgp.plan.network import measure_cluster
from dkgp.plan.validation.scaling import compare_with_model, measure_scaling

COLUMNS = (
    Column("workers", "workers", "d"),
    Column("product_seconds", "product, s", ".4f"),
    Column("product_speedup", "speed-up", ".2f"),
    Column("ceiling", "machine's ceiling", ".2f"),
    Column("share_of_ceiling", "of the ceiling", ".2f"),
    Column("product_to_model", "measured / model", ".2f"),
    Column("seconds", "whole solve, s", ".2f"),
    Column("speedup", "speed-up", ".2f"),
    Column("seconds_to_model", "measured / model", ".2f"),
    Column("worker_peak_bytes", "a worker's peak", "bytes"),
    Column("worker_memory_to_model", "measured / planned", ".2f"),
)


@dataclass(frozen=True)
class BenchScalingJob(ProblemJob):
    """A study of one solve on growing numbers of workers.

    Attributes
    ----------
    workers
        Numbers of worker processes; the first is what speed-ups refer to.
    repeats
        Turns that every number takes; medians are reported.
    null
        Whether the first number takes another turn in each repeat, for the noise of the speed-ups.
    """

    problem: BenchProblem = field(default_factory=lambda: BenchProblem(n=100_000))
    workers: tuple[int, ...] = (1, 2)
    repeats: int = 3
    null: bool = False

    def __post_init__(self) -> None:
        if not self.workers or min(self.workers) < 1 or len(set(self.workers)) != len(self.workers):
            raise UsageError(
                f"--workers needs different numbers of workers, each at least 1, such as 1,2; got {self.workers}"
            )


def run_bench_scaling(job: BenchScalingJob, reporter: Reporter) -> Document:
    """Measure; return seconds, speed-ups, ceilings and how far the cost model was off, for each number of workers."""
    with job.prepared(reporter) as (prepared, _):
        dataset, hyper = open_dataset(prepared.train), read_hyperparameters(prepared.hyper)
        solver, _ = job.solver.decided(dataset, hyper)
        scaling = measure_scaling(prepared.to_json(), solver, job.workers, job.repeats, reporter, null=job.null)
        reporter.note("measuring this machine and its cluster for the cost model")
        with open_executor(ClusterOptions(kind="processes", workers=1, threads_per_worker=1), 0, reporter) as executor:
            cluster = measure_cluster(executor)
            machine = measure_machine(dataset, hyper.kernel, hyper.noise_variance)
        foreseen = foresee(dataset, hyper, solver, SilentReporter())
    rows = compare_with_model(scaling, foreseen, machine, cluster)
    last = rows[-1]
    figures = {
        "product_speedup": last["product_speedup"],
        "ceiling": last["ceiling"],
        "speedup": last["speedup"],
        "column_passes": scaling.runs[job.workers[0]][0]["column_passes"],
        "iterations": scaling.runs[job.workers[0]][0]["iterations"],
    }
    title = job.title("Worker processes", prepared, f"median of {job.repeats}")
    settings = {
        **job.settings(prepared),
        "repeats": job.repeats,
        "runs": scaling.runs,
        "runs_again": scaling.again,
        "entries_per_second": scaling.ceilings,
        "machine_figures": machine.to_json(),
        "network": asdict(cluster.network),
    }
    return write_record(report("scaling", title, COLUMNS, rows, figures, **settings), job.out)
