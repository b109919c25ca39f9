"""`dkgp bench variance`: predictive variances, of one problem or of a table of the GBCD paper."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, byte_count

PROBLEM = section.problem_options(test_samples=500)
SETTINGS = (
    Option("latent", "Predict variances of the latent function, without the noise.", type=bool, default=False),
    Option(
        "max_passes",
        "Largest number of products with the kernel matrix per batch of test samples.",
        type=float,
        default=20.0,
    ),
    Option(
        "rank",
        "Rank of the partial Cholesky factor.  [default: automatic]",
        type=int,
        spellings=("--variance-rank",),
        metavar="R",
    ),
    Option(
        "halo",
        "Number of samples on which each group of the Vecchia factor is conditioned. 0: no Vecchia factor.  "
        "[default: automatic]",
        type=int,
        spellings=("--variance-halo",),
        metavar="S",
    ),
    Option(
        "batch_size",
        "Number of test samples per batch.  [default: automatic]",
        type=int,
        spellings=("--variance-batch",),
        metavar="SAMPLES",
    ),
    Option(
        "memory_bytes",
        "Working memory of a worker.  [default: 704MiB or more]",
        type=byte_count,
        spellings=("--variance-memory",),
        metavar="SIZE",
    ),
)


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.errors import UsageError
    from dkgp.models.variance.settings import VarianceSettings
    from dkgp_benchmarks.variance.measure import VarianceTrial
    from dkgp_benchmarks.variance.paper_tables import BenchPaperTableJob, run_bench_paper_table
    from dkgp_benchmarks.variance.report import BenchVarianceJob, run_bench_variance

    ways, only = values.pop("ways"), values.pop("only")
    if ways:
        from dkgp_benchmarks.variance.ways import BenchWaysJob, run_bench_ways

        most, folder, seed = values["n"], values["data_folder"], values["seed"]
        gap = (values["gaps"] or (0.02,))[0]
        return run_bench_ways(BenchWaysJob(values["cluster"], most, folder, only, gap, seed, values["out"]), reporter)
    if only:
        raise UsageError("--problem goes with --ways")
    problem, common = BenchProblem(**section.take(values, *PROBLEM)), section.take(values, *SETTINGS)
    table, folder, plot, out = values["table"], values["data_folder"], values["plot"], values["out"]
    gaps = values["gaps"] or (0.005 if table == "3" else 0.02,)
    with_cholesky, with_plain_pass = values["with_cholesky"], values["with_plain_pass"]
    trial = VarianceTrial(
        problem=problem,
        model=values["model"],
        settings=tuple(VarianceSettings(gap=gap, seed=problem.seed, **common) for gap in gaps),
        cluster=values["cluster"],
        repeats=values["repeats"],
        null=values["null"],
        with_cholesky=table != "4" if with_cholesky is None else with_cholesky,
        with_plain_pass=table != "3" if with_plain_pass is None else with_plain_pass,
    )
    if table is None:
        if folder is not None:
            raise UsageError("--data-folder goes with --table; for a single data set give --data FILE")
        job = BenchVarianceJob(trial, plot=plot, overwrite=values["overwrite"], out=out)
        return run_bench_variance(job, reporter)
    if trial.model or problem.hyper or plot or len(gaps) > 1 or problem.data != "friedman1":
        raise UsageError("--table takes one --variance-gap, and no --data, --model, --hyper or --plot")
    asked = BenchPaperTableJob(3 if table == "3" else 4, data_folder=folder, trial=trial, out=out)
    return run_bench_paper_table(asked, reporter)


section.SECTIONS.add(
    section.Section(
        "variance",
        """Compare predictive variances with LAPACK's Cholesky factorisation.

        The command checks that each exact variance, by Cholesky, lies in its proven interval. A second baseline is one
        plain NumPy pass over the kernel matrix in float64. Each method runs in its own process, once per repeat. Means
        are not computed.
        """,
        _run,
        (
            *PROBLEM,
            Option("model", "Predict with this model at samples of --data.", metavar="STORE"),
            Option(
                "table",
                "Measure all data sets of this table of the GBCD paper, and print them beside the paper's values. "
                "--samples is then the largest number of samples of a data set.",
                choices=("3", "4"),
            ),
            Option(
                "data_folder",
                "With --table or --ways: folder of the .npz files.  [default: the working directory]",
                metavar="DIR",
            ),
            Option(
                "ways",
                "Compare all methods for variances, and the one that dkgp chooses, on at least ten problems. "
                "--samples is then the largest number of samples of a problem. Real data come from --data-folder.",
                type=bool,
                default=False,
            ),
            Option("only", "With --ways: only this problem.", spellings=("--problem",), multiple=True, metavar="NAME"),
            Option(
                "gaps",
                "Requested relative width of the intervals. May be repeated.  [default: 0.02; 0.005 with --table 3]",
                type=float,
                spellings=("--variance-gap",),
                multiple=True,
                metavar="GAP",
            ),
            *SETTINGS,
            section.REPEATS,
            section.NULL,
            Option(
                "with_cholesky",
                "Include LAPACK's Cholesky factorisation.  [default: if it fits in memory, and not with --table 4]",
                type=bool,
                spellings=("--cholesky/--no-cholesky",),
            ),
            Option(
                "with_plain_pass",
                "Include the NumPy pass.  [default: yes, not with --table 3]",
                type=bool,
                spellings=("--plain-pass/--no-plain-pass",),
            ),
            Option("plot", "Plot gaps and intervals into a .png, .pdf or .svg file.", metavar="FILE"),
            section.OVERWRITE,
            section.OUT,
        ),
        examples=(
            "dkgp bench variance --samples 10000 --variance-gap 0.02 --variance-gap 0.005",
            "dkgp bench variance --data kin40k.npz --samples 30000 --test-samples 1000 --out variance.json",
            "dkgp bench variance --ways --samples 4000 --out ways.json",
            "dkgp bench variance --model model.zarr --data test.zarr",
            "dkgp bench variance --table 3 --data-folder benchmark-data --out table3.json",
        ),
        on_cluster=True,
    )
)
