"""`dkgp bench certify`: what classifiers prove of their labels, held against dense solutions."""

from __future__ import annotations

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.measurements import check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import UsageError
from dkgp_benchmarks.certify import exact, likelihood
from dkgp_benchmarks.certify.problems import METHODS, BenchCertifyJob, Judged, problems


def run_bench_certify(job: BenchCertifyJob, reporter: Reporter) -> Document:
    """Train, predict and judge every problem; return shares, errors and counts.

    Raises
    ------
    UsageError, InputError
        What is asked for is not here.
    """
    check_record_file(job.out)
    if job.method not in METHODS:
        raise UsageError(f"`method` is '{job.method}'; expected one of {', '.join(METHODS)}")
    if job.method != METHODS[0]:
        return likelihood.run(job, reporter)
    rows, total = [], Judged()
    executor = LocalExecutor()
    try:
        for problem in problems(job, exact.FILES):
            row, judged = exact.measured(problem, job, executor, reporter)
            rows.append(row)
            total += judged
    finally:
        executor.close()
    figures = dict(zip(Judged.NAMES[:4], total.counts, strict=False))
    title = (
        f"Certified labels of exact LS-SVMs: {total.certified:,} of {total.labels:,} labels compared with dense "
        f"solutions are certified, {total.wrong} of them wrongly; {total.beyond} decisions lie outside their bounds"
    )
    return write_record(report("certify", title, exact.COLUMNS, rows, figures, tolerance=job.tolerance), job.out)
