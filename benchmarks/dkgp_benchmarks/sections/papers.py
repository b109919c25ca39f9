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
            "Make a page of it in this folder, index.html, with a record and pictures of each part. What was "
            "interrupted goes on by the same command.",
            metavar="DIR",
        ),
        Option(
            "verdicts",
            "Write what the report's parts came to beside what the papers print, and whether that is met: as Markdown "
            "(.md), or with the tables as compact records (.json).",
            multiple=True,
            metavar="FILE",
        ),
        Option(
            "records",
            "Go on from the compact records of another machine's report: what is done there is not done again.",
            metavar="FILE",
        ),
        Option(
            "full",
            "The papers' own sizes and draws, which takes hours.  [default: settings of minutes]",
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
            "Of the GBCD paper by number; of the others: kcg, scdp-3, sb.  [default: all]",
            spellings=("--table",),
            choices=("1", *items_of("table")),
            multiple=True,
        ),
        Option(
            "figures",
            "The same of figures.  [default: all]",
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
        Option("n_test", "At most.  [default: each part's]", type=int, spellings=("--test-samples", "--n-test")),
        Option("draws", "Of the samples, or splits.  [default: the paper's with --full; 1 to 5]", type=int),
        replace(section.SUBSET, default=None, help="Number of samples to tune on.  [default: each part's]"),
        Option(
            "sizes",
            "Samples of Friedman1 in Figure 4.  [default: each part's]",
            type=whole_numbers,
            metavar="N,N,...",
        ),
        Option("basis_size", "Regressors in Tables 4 and 5; at most a quarter of the samples.", type=int),
        Option(
            "methods",
            "Sparse methods in Table 4, as `dkgp bench sparse` takes them.  [default: sd, sr, mpgp, sggp]",
            spellings=("--method",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "block_size",
            "Variables in a round of the paper's block methods; at most a quarter of the samples.  [default: "
            "each part's]",
            type=whole_or_auto,
            metavar="M|auto",
        ),
        replace(section.TOLERANCE, default=None, help="On max |g|.  [default: 1e-4]"),
        Option(
            "max_passes", "Where each method is cut off, and said to be.  [default: 1000; 20000 for kcg]", type=float
        ),
        Option("max_seconds", "The same in seconds of each run.", type=float),
        section.SEED,
        Option("plots", "Draw each figure into this folder.", metavar="DIR"),
        section.OVERWRITE,
        section.OUT,
    )


section.SECTIONS.add(
    section.Section(
        "papers",
        """Tables and figures of four papers on data that you have: as tables, or as a report with pictures.

        The GBCD paper, the kernel CG paper, the one on sparse conjugate directions pursuit, and Smola and Bartlett's.
        All solvers run in this process, one after the other, with the same hyperparameters, threads and limits. Data
        sets that are absent are named, and so is what stands in for them; without --data all is generated.
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
