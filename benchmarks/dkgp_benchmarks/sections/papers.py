"""`dkgp bench papers`: the experiments of the papers, on data sets that a user has; and a report of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers, whole_or_auto


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.papers.papers import BenchPapersJob, run_bench_papers
    from dkgp_benchmarks.report.run import run_report

    job = BenchPapersJob(**values)
    return run_bench_papers(job, reporter) if job.report is None else run_report(job, reporter)


def _exit_code(document: section.Document) -> int:
    return int(document.get("exit_code", 0))


def _options() -> tuple[Option, ...]:
    from dkgp_benchmarks.papers.papers import items_of
    from dkgp_benchmarks.papers.part import PARTS

    return (
        section.DATA_FOLDER,
        Option(
            "report",
            "Write a report to this folder: the page index.html, and a record and pictures of each part. The same "
            "command continues an interrupted report.",
            metavar="DIR",
        ),
        Option(
            "verdicts",
            "Write the results beside the values of the papers, and whether they agree, as Markdown (.md) or as "
            "compact records (.json).",
            multiple=True,
            metavar="FILE",
        ),
        Option(
            "records",
            "Start from the compact records of another machine's report. Their parts are not repeated.",
            metavar="FILE",
        ),
        Option(
            "full",
            "Use the sizes and the number of draws of the papers, which takes hours.  [default: settings that take "
            "minutes]",
            type=bool,
            default=False,
        ),
        Option(
            "parts",
            f"{', '.join(PARTS.all())}; NAME:DATA for one data set.  [default: all]",
            spellings=("--part",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "tables",
            "Table: by number for the GBCD paper; kcg, scdp-3, sb and so on for the others. May be repeated.  "
            "[default: all]",
            spellings=("--table",),
            choices=("1", *items_of("table")),
            multiple=True,
        ),
        Option(
            "figures",
            "Figure, named in the same way. May be repeated.  [default: all]",
            spellings=("--figure",),
            choices=items_of("figure"),
            multiple=True,
        ),
        Option(
            "problems",
            "friedman1 or a file of --data without .npz; NAME:TARGET for another target than y, such as a matrix; or a "
            "problem of `dkgp bench classify`.  [default: those of the papers that are here]",
            spellings=("--problem",),
            multiple=True,
            metavar="NAME",
        ),
        Option("n", "Training samples at most.  [default: each part's]", type=int, spellings=("--samples", "--n")),
        Option(
            "n_test",
            "Largest number of test samples.  [default: by the part]",
            type=int,
            spellings=("--test-samples", "--n-test"),
        ),
        Option(
            "draws",
            "Number of random draws of the samples, or of splits.  [default: 1 to 5; with --full as in the paper]",
            type=int,
        ),
        replace(section.SUBSET, default=None, help="Number of samples to tune on.  [default: each part's]"),
        Option(
            "sizes",
            "Numbers of samples in Figure 4.  [default: by the part]",
            type=whole_numbers,
            metavar="N,N,...",
        ),
        Option("basis_size", "Number of basis samples in Tables 4 and 5, at most a quarter of the samples.", type=int),
        Option(
            "methods",
            "Sparse method of Table 4, as for `dkgp bench sparse`. May be repeated.  [default: sd, sr, mpgp, sggp]",
            spellings=("--method",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "block_size",
            "Number of coefficients that a round of the block methods changes, at most a quarter of the samples.  "
            "[default: by the part]",
            type=whole_or_auto,
            metavar="M|auto",
        ),
        replace(section.TOLERANCE, default=None, help="Tolerance of the largest residual.  [default: 1e-4]"),
        Option(
            "max_passes",
            "Largest number of passes of each method. The output marks methods that reach it.  "
            "[default: 1000; 20000 for kcg]",
            type=float,
        ),
        Option("max_seconds", "Largest number of seconds of each run.", type=float),
        section.SEED,
        Option("plots", "Plot each figure into this folder.", metavar="DIR"),
        section.OVERWRITE,
        section.OUT,
    )


section.SECTIONS.add(
    section.Section(
        "papers",
        """Reproduce the tables and figures of the four papers that dkgp implements.

        The papers are those on greedy block coordinate descent (GBCD), on kernel conjugate gradients (KCG), on sparse
        conjugate directions pursuit (SCDP), and on sparse greedy regression by Smola and Bartlett (SB). All solvers run
        in this process, one after the other, with the same hyperparameters, threads and limits. Missing data sets are
        replaced by generated ones, and the output says so.
        """,
        _run,
        _options,
        examples=(
            "dkgp bench papers --report report",
            "dkgp bench papers --report report --data benchmark-data --full",
            "dkgp bench papers --report report --part gbcd-table-4 --part scdp-figure-5",
            "dkgp bench papers --report report --part sb-mixture --verdicts verdicts.md --verdicts records.json",
            "dkgp bench papers --data benchmark-data --table 2 --problem kin40k --problem california --out table2.json",
            "dkgp bench papers --data benchmark-data --figure kcg --problem abalone --plots figures",
            "dkgp bench papers --data benchmark-data --table 2 --problem sarcos_test4449:Y7 --full",
            "dkgp bench papers --data benchmark-data --table 4 --problem california --samples 10000 --basis-size 500",
            "dkgp bench papers --data benchmark-data --table sb --table sb-errors --figure sb --full",
        ),
        without_null="its figures stand beside those that the papers print, not beside a baseline of this run",
        exit_code=_exit_code,
    )
)
