"""`dkgp bench variance`: predictive variances, of one problem or of a table of the GBCD paper."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, byte_count

PROBLEM = section.problem_options(test_samples=500)
SETTINGS = (
    Option("latent", "Variances of the function itself, without the noise.", type=bool, default=False),
    Option("max_passes", "Products with the kernel matrix for a batch.", type=float, default=20.0),
    Option("rank", "Of the factor.  [default: chosen]", type=int, spellings=("--variance-rank",), metavar="R"),
    Option(
        "halo",
        "Of the block-Vecchia factor, 0 for none.  [default: chosen]",
        type=int,
        spellings=("--variance-halo",),
        metavar="S",
    ),
    Option(
        "batch_size",
        "Of a batch.  [default: chosen]",
        type=int,
        spellings=("--variance-batch",),
        metavar="SAMPLES",
    ),
    Option(
        "memory_bytes",
        "Of a worker.  [default: 704MiB or more]",
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
        """Predictive variances against LAPACK's Cholesky and one plain NumPy float64 pass over the kernel matrix.

        Cholesky's variances are exact: each is checked to lie in its proven interval. Every contender runs in a process
        of its own and takes its turn in every repeat. No system is solved for the means, which variances do not depend
        on.
        """,
        _run,
        (
            *PROBLEM,
            Option("model", "Predict with this model, at samples of --data.", metavar="STORE"),
            Option(
                "table",
                "All data sets of that table of the GBCD paper, beside its own figures. --samples is then the most of "
                "each.",
                choices=("3", "4"),
            ),
            Option(
                "data_folder", "With --table or --ways: where their .npz files are.  [default: here]", metavar="DIR"
            ),
            Option(
                "ways",
                "Every way to variances on ten problems and more, beside what dkgp chooses; --samples is the most of "
                "each, real data are taken from --data-folder.",
                type=bool,
                default=False,
            ),
            Option("only", "With --ways: this problem alone.", spellings=("--problem",), multiple=True, metavar="NAME"),
            Option(
                "gaps",
                "How narrow intervals are to be; several are compared.  [default: 0.02; with --table 3, 0.005]",
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
                "Include LAPACK's Cholesky factorisation.  [default: where it fits, not with --table 4]",
                type=bool,
                spellings=("--cholesky/--no-cholesky",),
            ),
            Option(
                "with_plain_pass",
                "Include the NumPy pass.  [default: yes, not with --table 3]",
                type=bool,
                spellings=("--plain-pass/--no-plain-pass",),
            ),
            Option("plot", "Draw gaps and intervals into a .png, .pdf or .svg.", metavar="FILE"),
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
