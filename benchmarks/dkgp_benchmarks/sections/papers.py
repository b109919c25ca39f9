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
            "Compare each result with the value in its paper, and write both to this file: Markdown (.md), or records "
            "(.json) that --records reads. May be repeated.",
            multiple=True,
            metavar="FILE",
        ),
        Option(
            "records",
            "Records that --verdicts wrote, for example on another machine. Their parts are not run again.",
            metavar="FILE",
        ),
        Option(
            "full",
            "Use the papers' numbers of samples and of random draws, which takes hours.  [default: smaller numbers, "
            "which take minutes]",
            type=bool,
            default=False,
        ),
        Option(
            "parts",
            f"Part of a paper to reproduce. NAME:DATA restricts it to one data set. Parts: "
            f"{', '.join(PARTS.all())}. May be repeated.  [default: all]",
            spellings=("--part",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "tables",
            "Table to reproduce. A number is a table of the GBCD paper; kcg, scdp-3 and sb are tables of the papers "
            "with these abbreviations. May be repeated.  [default: all]",
            spellings=("--table",),
            choices=("1", *items_of("table")),
            multiple=True,
        ),
        Option(
            "figures",
            "Figure to reproduce, named like the tables. May be repeated.  [default: all]",
            spellings=("--figure",),
            choices=items_of("figure"),
            multiple=True,
        ),
        Option(
            "problems",
            "Data set: friedman1 (generated), a file of --data without .npz, or a problem of `dkgp bench classify`. "
            "NAME:ARRAY takes the targets from another array of the file than y. May be repeated.  [default: the "
            "papers' data sets in --data]",
            spellings=("--problem",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "n",
            "Largest number of training samples.  [default: depends on the part]",
            type=int,
            spellings=("--samples", "--n"),
        ),
        Option(
            "n_test",
            "Largest number of test samples.  [default: depends on the part]",
            type=int,
            spellings=("--test-samples", "--n-test"),
        ),
        Option(
            "draws",
            "Number of random draws of the samples, or of random splits into training and test samples.  [default: "
            "1 to 5; with --full as in the paper]",
            type=int,
        ),
        replace(section.SUBSET, default=None, help="Number of samples to tune on.  [default: depends on the part]"),
        Option(
            "sizes",
            "For figure 4 of the GBCD paper: numbers of samples.  [default: depends on the part]",
            type=whole_numbers,
            metavar="N,N,...",
        ),
        Option(
            "basis_size",
            "For tables 4 and 5 of the GBCD paper: number of basis samples, at most a quarter of the samples.",
            type=int,
        ),
        Option(
            "methods",
            "For table 4 of the GBCD paper: sparse method, as in `dkgp bench sparse`. May be repeated.  [default: sd, "
            "sr, mpgp, sggp]",
            spellings=("--method",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "block_size",
            "For solvers that change a block of coefficients in each round: size of the block, at most a quarter of "
            "the samples.  [default: depends on the part]",
            type=whole_or_auto,
            metavar="M|auto",
        ),
        replace(section.TOLERANCE, default=None, help="Tolerance of the largest residual.  [default: 1e-4]"),
        Option(
            "max_passes",
            "Largest number of passes over the kernel matrix of each method. The output marks methods that reach it.  "
            "[default: 1000; 20000 for kernel conjugate gradients]",
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

        The papers and their abbreviations below: greedy block coordinate descent (GBCD, gbcd), kernel conjugate
        gradients (KCG, kcg), sparse conjugate directions pursuit (SCDP, scdp), and sparse greedy regression by Smola
        and Bartlett (SB, sb). All methods run in this process, one after the other, with the same hyperparameters,
        threads and limits. Generated data replace missing data sets, and the output names them.
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
