"""`dkgp bench sparse`: sparse models beside the exact one, their speed beside BLAS's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.bench.sparse.job import BenchSparseJob
    from dkgp.bench.sparse.speed import run_bench_sparse_speed

    problem = BenchProblem(**section.take(values, *section.problem_options(test_samples=1000)))
    values.pop("speed")
    return run_bench_sparse_speed(BenchSparseJob(problem=problem, **values), reporter)


section.SECTIONS.add(
    section.Section(
        "sparse",
        """Sparse models' training against BLAS alone.

        Every contender runs in a process of its own and takes its turn in every repeat.
        """,
        _run,
        (
            *section.problem_options(test_samples=1000),
            Option(
                "methods",
                "With settings of its own if need be, as in sggp,screen=2,score_rows=2048.  [default: all]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "bases",
                "For methods that do not choose greedily.  [default: each method's own]",
                spellings=("--basis",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "sizes",
                "Basis samples.",
                type=whole_numbers,
                spellings=("--basis-size", "--sizes"),
                default=(),
                metavar="M,M,...",
            ),
            Option(
                "speed",
                "Training alone, against the time that BLAS takes for its operations.",
                type=bool,
                default=False,
            ),
            replace(section.REPEATS, default=1),
            section.NULL,
            section.OUT,
        ),
        examples=("dkgp bench sparse --speed --samples 100000 --basis-size 2000 --repeats 3 --null",),
        on_cluster=True,
    )
)
