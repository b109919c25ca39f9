"""Verdicts on the GBCD paper: Tables 2 to 5 and Figures 1 to 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dkgp_benchmarks.papers.verdicts.verdict import (
    MET,
    MISSED,
    OPEN,
    SAME_ORDER,
    Verdict,
    claim,
    near,
    rows_by,
    same_order,
    sections_of,
)

Document = dict[str, Any]

# Rivals of Table 2, as the paper's columns are.
RIVALS = {"cholesky": "Cholesky", "cg": "CG", "smo": "SMO", "bcdc": "BCDC", "bcdg": "BCDG"}
# Test errors of two studies, hyperparameters and splits of their own, are near each other within this share.
ERROR_BAND = 0.1
# "Similar to the result of Cholesky factorization up to 3 significant digits".
THREE_DIGITS = 5e-3
# Gradients of neighbours are more correlated than those of other pairs by at least so much: "non-negligibly".
CORRELATED = 0.1


def solvers(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Table 2 and Figures 1 to 3 of a data set."""
    for table in sections_of(sections, "table_2"):
        yield from _ratios(table, variant, "seconds", "seconds")
        # What the paper's seconds were of: kernel columns, which no machine and no other work on it sways.
        yield from _ratios(table, variant, "passes", "passes")
        yield from _errors(table, variant)
    for table in sections_of(sections, "figure_1"):
        yield from _correlations(table)
    for name, what, goal in (
        ("figure_2", "seconds", "gradient_0.0001"),
        ("figure_2", "seconds", "objective"),
        ("figure_3", "iterations", "objective"),
    ):
        for table in sections_of(sections, name):
            yield from _first(table, what, goal)


def _ratios(table: Document, variant: str, figure: str, what: str) -> Iterator[Verdict]:
    """Seconds, or passes, of each rival over GBCD's as in the paper, beside the paper's ratio of seconds."""
    from dkgp_benchmarks.papers.tables import PAPER_SECONDS, TEN_HOURS

    rows = rows_by(table, "key")
    paper = PAPER_SECONDS.get(variant)
    for key, name in RIVALS.items():
        ratio = None if key not in rows else rows[key].get(f"{figure}_ratio")
        if ratio is None:
            continue
        words, finished = f"{what} of {name} over GBCD's", bool(rows[key]["converged"])
        here = f"{ratio:,.2f}" if finished else f"> {ratio:.2g}"
        if paper is None:
            if key != "cholesky":
                yield claim(words, "> 1", here, True if ratio > 1.0 else False if finished else None)
            continue
        seconds, gbcd = paper[key], paper["gbcd"]
        assert gbcd is not None
        if seconds is None:
            bound = TEN_HOURS / gbcd
            verdict = MET if ratio >= bound / SAME_ORDER else MISSED if finished else OPEN
            yield Verdict(words, f"> {bound:,.0f}", here, verdict)
            continue
        verdict = same_order(ratio, seconds / gbcd, less_is_better=False)
        # What was cut off takes longer than that: a bound from below says no more than that it is met.
        verdict = verdict if finished else OPEN if verdict == MISSED else MET
        yield Verdict(words, f"{seconds / gbcd:,.2f}", here, verdict)


def _errors(table: Document, variant: str) -> Iterator[Verdict]:
    from dkgp_benchmarks.papers.tables import PAPER_RMSE

    rows = rows_by(table, "key")
    if "cholesky" not in rows:
        return
    exact = rows["cholesky"]["rmse"]
    away = {
        row["solver"]: abs(row["rmse"] / exact - 1.0)
        for key, row in rows.items()
        if key != "cholesky" and row["converged"] and row.get("rmse") is not None
    }
    if away:
        worst = max(away, key=lambda name: away[name])
        what = f"RMSE of {len(away)} methods that arrived, furthest from Cholesky's"
        yield claim(what, "3 digits agree", f"{away[worst]:.1e} ({worst})", away[worst] <= THREE_DIGITS)
    if variant in PAPER_RMSE:
        paper = PAPER_RMSE[variant]
        yield Verdict(
            "RMSE of Cholesky's solution", f"{paper:g}", f"{exact:.4f}", near(exact, paper, ERROR_BAND * paper)
        )


def _correlations(table: Document) -> Iterator[Verdict]:
    means: dict[str, float] = {}
    for system in dict.fromkeys(row["system"] for row in table["rows"]):
        rows = [row for row in table["rows"] if row["system"] == system]
        nearest, others = rows[0], rows[-1]
        means[system] = nearest["mean"]
        what = f"correlation of gradients of {nearest['pairs']}, of {others['pairs']} pairs; right-hand side {system}"
        here = f"{nearest['mean']:.3f}, {others['mean']:.3f}"
        yield claim(what, "correlated", here, nearest["mean"] >= others["mean"] + CORRELATED)
    if {"y", "k_*"} <= set(means):
        what = "correlation of nearest neighbours' gradients: right-hand side k_*, y"
        yield claim(what, "higher, lower", f"{means['k_*']:.3f}, {means['y']:.3f}", means["k_*"] > means["y"])


def _first(table: Document, what: str, goal: str) -> Iterator[Verdict]:
    """Judge whether GBCD is the first of the paper's methods to come to a goal; of iterations, of block methods.

    A method that was cut off before that leaves it open.
    """
    rows = rows_by(table, "key")
    rivals = [key for key in RIVALS if key in rows and (what == "seconds" or key.startswith("bcd"))]
    gbcd = rows["gbcd"].get(goal)
    if gbcd is None or not rivals:
        return
    arrived = {RIVALS[key]: rows[key][goal] for key in rivals if rows[key].get(goal) is not None}
    form = ",.2f" if what == "seconds" else ",.0f"
    shown = ", ".join(f"{name} {value:{form}}" for name, value in arrived.items()) or "none other"
    words = "max |g| <= 1e-4" if goal.startswith("gradient") else "the objective within 1e-4 of its least"
    cut_off = any(rows[key].get(goal) is None and rows[key]["last"] < gbcd for key in rivals if rows[key].get("last"))
    holds = False if any(value <= gbcd for value in arrived.values()) else None if cut_off else True
    yield claim(f"{what} to {words}", "GBCD first", f"GBCD {gbcd:{form}}; {shown}", holds)


def variances(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Table 3: distance of the variances from Cholesky's."""
    for row in sections[0]["rows"]:
        here, paper = row.get("relative_rmse"), row["paper_rmse"]
        if here is None or variant == "sarcos_test4449":
            continue
        verdict = MISSED if here > paper else same_order(here, paper)
        what = f"relative error of {row['n_test']:,} variances against Cholesky's"
        width = f" (width {row['gap']:.2g}, factor of {row['rank']:,.0f} samples)" if row.get("rank") else ""
        yield Verdict(what, f"{paper:g}", f"{here:.2g}{width}", verdict)


def sparse_models(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Table 4: test errors, as ratios to the exact model's, and their order."""
    (table,) = sections
    for row in table["rows"]:
        paper = row.get("paper_rmse_ratio")
        if paper is None:
            continue
        if row["model"].startswith("exact"):
            here, error = row["rmse"], row["paper_rmse"]
            verdict = near(here, error, ERROR_BAND * error)
            yield Verdict("RMSE of the exact model", f"{error:g}", f"{here:.4f}", verdict)
        else:
            ratio = row["rmse_ratio"]
            what = f"RMSE of {row['model']} over the exact model's"
            yield Verdict(what, f"{paper:.3f}", f"{ratio:.3f}", near(ratio, paper, ERROR_BAND * paper))
    for what, said in table["figures"].items():
        if " above " in what:
            words = "tied" if said.startswith("tied") else "holds" if said.startswith("yes") else "reversed"
            here = f"{words}{said[said.index(':') :]}"
            # One draw has no standard error.
            holds = None if said.endswith("of one draw") else said.startswith("yes")
            yield claim(f"error of {what}", "yes", here, holds)


def several_targets(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Table 5: which of two models errs less, and which takes longer."""
    rows = rows_by(sections[0], "target")
    for what, row in rows.items():
        paper = row.get("paper_ratio")
        if paper is not None:
            said = f"{paper:.3f} (HumanEva)"
            yield claim(f"{what}, MPGP's over GBCD's", said, f"{row['ratio']:.3f}", row["ratio"] > 1.0)


def growth(sections: Sequence[Document], variant: str) -> Iterator[Verdict]:
    """Figure 4: the gap between BCDC's seconds, or passes, and GBCD's as n grows."""
    (table,) = sections
    gbcd = {row["n"]: row for row in table["rows"] if row["key"] == "gbcd" and row["converged"]}
    rows = [row for row in table["rows"] if row["key"] == "bcdc" and row["converged"] and row["n"] in gbcd]
    if len(rows) < 2:
        return
    for figure, what in (("seconds", "seconds"), ("column_passes", "passes")):
        ratios = {row["n"]: row[figure] / gbcd[row["n"]][figure] for row in rows}
        first, last = rows[0]["n"], rows[-1]["n"]
        shown = ", ".join(f"{ratio:.2f} of {n:,}" for n, ratio in ratios.items())
        words = f"{what} of BCDC over GBCD's"
        yield claim(
            f"{words}, from {first:,} to {last:,} samples", "the gap widens", shown, ratios[last] > ratios[first]
        )
        yield claim(f"{words}, {last:,} samples", "> 1", f"{ratios[last]:.2f}", ratios[last] > 1.0)
