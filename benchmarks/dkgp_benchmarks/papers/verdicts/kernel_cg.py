"""Verdicts on the kernel CG paper: the root law of its Figure 1, Table 2's mean, and what trees save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dkgp_benchmarks.papers.verdicts.verdict import BEYOND, MET, MISSED, OPEN, Verdict, claim, near

Document = dict[str, Any]

# "About the square root": within this factor of it.
ROOT_FACTOR = 2.0
# Of the mean of Table 2.
MEAN_BAND = 0.25


def root_law(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Figure 1: iterations of kernel CG over the root of parameter CG's to each goal; bounds where that was cut off."""
    for section in sections:
        for row in section["rows"]:
            factor = row.get("factor")
            if factor is None:
                continue
            cut_off = bool(row.get("factor_is_bound", row.get("cut_off")))
            verdict = MET if factor <= ROOT_FACTOR else OPEN if cut_off else MISSED
            verdict = BEYOND if factor < 1.0 / ROOT_FACTOR else verdict
            # Of several tables of a data set: the loss and lambda.
            of = str(section["section"]).partition(":")[2].removeprefix(variant).removeprefix("-")
            what = f"iterations over the root of parameter CG's, {of}{': ' if of else ''}{row['goal']}"
            yield Verdict(what, "about 1", f"< {factor:.2f}" if cut_off else f"{factor:.2f}", verdict)


def counts(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Table 2: the mean of parameter CG's iterations over kernel CG's, all that the text has of it."""
    (table,) = sections
    paper = table["figures"]["paper_mean_times_fewer"]
    for key, words in (("", "to the gap"), ("same_", "to the same risk")):
        rows = [row for row in table["rows"] if row[f"{key}times"] is not None]
        if not rows:
            continue
        mean = math.fsum(row[f"{key}times"] for row in rows) / len(rows)
        late = sum(bool(row[f"{key}cut_off"]) for row in rows)
        verdict = near(mean, paper, MEAN_BAND * paper, less_is_better=False)
        # A mean of bounds from below may be larger, and is not smaller.
        verdict = OPEN if late and verdict == MISSED else verdict
        here = f"> {mean:.1f} ({late} of {len(table['rows'])} cut off)" if late else f"{mean:.1f}"
        yield Verdict(f"mean of parameter CG's iterations over kernel CG's, {words}", f"{paper:g}", here, verdict)


def trees(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Figure 1's third column: seconds with trees and without, and entries, which no other work on a machine sways."""
    (table,) = sections
    both = [row for row in table["rows"] if row["times"] is not None]
    if not both:
        return
    sizes = both[:1] + both[1:][-1:]
    for what, ratios in (
        ("seconds", [row["times"] for row in sizes]),
        ("entries", [row["plain_entries"] / row["tree_entries"] for row in sizes]),
    ):
        words = f"{what} without trees over those with"
        yield claim(f"{words}, {both[-1]['n']:,} samples", "> 1", f"{ratios[-1]:.1f}", ratios[-1] > 1.0)
        if len(ratios) > 1:
            grown = f"{words}, from {both[0]['n']:,} to {both[-1]['n']:,} samples"
            yield claim(grown, "grows", f"{ratios[0]:.1f} to {ratios[1]:.1f}", ratios[1] > ratios[0])
