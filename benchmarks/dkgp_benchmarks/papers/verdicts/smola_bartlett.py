"""Verdicts on Smola and Bartlett's paper: Table 2, Figure 1, test errors, and the mixture of Gaussians."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dkgp_benchmarks.papers.verdicts.verdict import MISSED, Verdict, claim, near

Document = dict[str, Any]

# Of Table 2's log posteriors; the paper gives no spread. Of Figure 1, in words.
KERNELS_BAND, RELATIVE_VARIANCE = 0.25, 0.1
# Gaps of random subsets of 50 and above are within this factor of the largest subset's: "rapid convergence".
RAPID, ENOUGH = 1.1, 50
STANDARD_ERRORS = 2.0
# Of the ratio of test errors, and of the log posterior: the paper's own "(1 +- 0.005)".
RATIO_BAND = 0.005


def kernels(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Table 2: kernels for the log posterior, and for error bars."""
    table = sections[0]["judged"]
    for number, width in enumerate(table["widths"]):
        paper = table["published"]["posterior"][number]
        count = table["counts"][table["closest"]][number]
        shown = "not reached" if count is None else f"{count:.0f} ({table['closest']})"
        verdict = MISSED if count is None else near(count, paper, KERNELS_BAND * paper)
        yield Verdict(f"kernels for the log posterior, 2w^2 = {width:g}", f"{paper:g}", shown, verdict)
    for number, width in enumerate(table["widths"]):
        paper, spread = table["published"]["error_bars"][number]
        counts = table["error_bars"][number]
        mean = math.fsum(counts) / len(counts)
        deviation = math.sqrt(math.fsum((count - mean) ** 2 for count in counts) / len(counts))
        # Of the difference of two means over as many samples.
        error = math.sqrt(2.0 / len(counts)) * spread
        what = f"kernels for error bars, 2w^2 = {width:g}, {len(counts)} samples"
        yield Verdict(
            what,
            f"{paper:g} ± {spread:g}",
            f"{mean:.1f} ± {deviation:.1f}",
            near(mean, paper, STANDARD_ERRORS * error),
        )


def gaps(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Figure 1: relative variances, and what random subsets of 50 are good for."""
    (table,) = sections
    for row in table["rows"]:
        value = row["relative_variance"]
        what = f"relative variance of the gap, subsets of {row['candidates']}"
        yield claim(what, "< 10 %", f"{value:.1%}", value < RELATIVE_VARIANCE)
    shown = [column["name"] for column in table["columns"] if str(column["name"]).startswith("gap_")]
    at, last = shown[-1].removeprefix("gap_"), {row["candidates"]: row[shown[-1]] for row in table["rows"]}
    best = last[max(last)]
    for candidates in sorted(last):
        if ENOUGH <= candidates < max(last):
            ratio = last[candidates] / best
            what = f"gap of subsets of {candidates} over that of {max(last)}, {at} kernels"
            yield claim(what, "rapid: about 1", f"{ratio:.3f}", ratio <= RAPID)
    small = min(last)
    what = f"gap of subsets of {small} over that of {max(last)}, {at} kernels"
    yield claim(what, "slower", f"{last[small] / best:.3f}", last[small] / best > RAPID)


def errors(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Test errors and log posteriors over the splits."""
    (table,) = sections
    for row in table["rows"]:
        paper = row["paper_ratio"]
        verdict = near(row["ratio"], paper, RATIO_BAND * paper)
        what = f"test error of the sparse model over the exact one's, s2 = {row['noise']:g}"
        yield Verdict(what, f"{paper:.4f}", f"{row['ratio']:.4f}", verdict)
    # The paper has one, and does not say of which noise.
    closest = min(table["rows"], key=_distance)
    paper = closest["paper_posterior"]
    verdict = near(closest["posterior"], paper, RATIO_BAND * abs(paper))
    what = f"log posterior of the sparse model, s2 = {closest['noise']:g}"
    yield Verdict(what, f"{paper:.5g}", f"{closest['posterior']:.5g}", verdict)


def mixture(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """The gap of as many kernels as the paper has; nothing of another size."""
    (table,) = sections
    for row in table["rows"]:
        if row.get("paper") is not None:
            below = row["gap"] < row["paper"]
            verdict = near(row["gap"], row["paper"], 0.5 * row["paper"]) if below else MISSED
            yield Verdict(f"gap of {row['kernels']} kernels", f"< {row['paper']:g}", f"{row['gap']:.4f}", verdict)


def _distance(row: Mapping[str, Any]) -> float:
    return float(abs(row["posterior"] / row["paper_posterior"] - 1.0))
