"""`dkgp bench sparse`: sparse models beside the exact one, their speed beside BLAS's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.errors import UsageError
    from dkgp_benchmarks.sparse.bounds import run_bench_sparse_bounds
    from dkgp_benchmarks.sparse.job import BenchSparseJob
    from dkgp_benchmarks.sparse.measure import run_bench_sparse
    from dkgp_benchmarks.sparse.speed import run_bench_sparse_speed
    from dkgp_benchmarks.sparse.tuned import run_bench_sparse_tuned

    problem = BenchProblem(**section.take(values, *section.problem_options(test_samples=1000)))
    others = {"bounds": run_bench_sparse_bounds, "speed": run_bench_sparse_speed, "tuned": run_bench_sparse_tuned}
    asked = [name for name in others if values.pop(name)]
    if len(asked) > 1:
        raise UsageError(f"`{asked[0]}` and `{asked[1]}` are two benchmarks; ask for one")
    run = others[asked[0]] if asked else run_bench_sparse
    return run(BenchSparseJob(problem=problem, **values), reporter)


section.SECTIONS.add(
    section.Section(
        "sparse",
        """Compare sparse models with the exact one.

        The table has errors, coverage, proven distances, and the seconds to choose a basis, solve and predict. Each
        model runs in its own process, once per repeat, with the same hyperparameters.
        """,
        _run,
        (
            *section.problem_options(test_samples=1000),
            Option(
                "methods",
                "Method, as for `dkgp sparse`. Settings follow after commas, as in sggp,screen=2,score_rows=2048. "
                "May be repeated.  [default: all]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "bases",
                "How the basis is chosen, for methods without a greedy choice. May be repeated.  [default: depends on "
                "the method]",
                spellings=("--basis",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "sizes",
                "Numbers of basis samples.",
                type=whole_numbers,
                spellings=("--basis-size", "--sizes"),
                default=(),
                metavar="M,M,...",
            ),
            Option(
                "with_exact",
                "Include the exact model.",
                type=bool,
                default=True,
                spellings=("--exact/--no-exact",),
            ),
            Option(
                "peers",
                "Include sparse models of GPyTorch, GPflow and GPBoost, with the same hyperparameters.",
                type=bool,
                default=False,
            ),
            Option(
                "peer_names",
                "Include only this model of another library, such as gpboost-vif. May be repeated.",
                spellings=("--peer",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "peer_pythons",
                "Python interpreter of an environment with the other libraries. May be repeated.  [default: this one]",
                spellings=("--peer-python",),
                multiple=True,
                metavar="PYTHON",
            ),
            Option(
                "bounds",
                "Compare all proven bounds with the exact model, by Cholesky, instead. --data may be a folder of "
                ".npz files.",
                type=bool,
                default=False,
            ),
            Option(
                "speed",
                "Measure only the training, and compare it with the time that BLAS takes for its operations, instead.",
                type=bool,
                default=False,
            ),
            Option(
                "tuned",
                "Compare hyperparameters by vif's likelihood on all samples with those of a subset, instead. --data "
                "may be a folder of .npz files.",
                type=bool,
                default=False,
            ),
            replace(section.REPEATS, default=1),
            section.NULL,
            Option("plot", "Plot errors and coverage by size into a .png, .pdf or .svg file.", metavar="FILE"),
            section.OVERWRITE,
            section.OUT,
        ),
        examples=(
            "dkgp bench sparse --samples 10000 --basis-size 100,200,500 --plot sparse.png",
            "dkgp bench sparse --data kin40k.npz --method vfe --method fitc --basis pivoted --basis k-means",
            "dkgp bench sparse --method vfe --method fitc --basis uniform --peers --peer-python ~/peers/bin/python",
            "dkgp bench sparse --bounds --data benchmark-data --out bounds.json",
            "dkgp bench sparse --tuned --data benchmark-data --out tuned.json",
            "dkgp bench sparse --speed --samples 100000 --basis-size 2000 --repeats 3 --null",
        ),
        on_cluster=True,
    )
)
