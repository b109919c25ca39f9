"""The glossary has the lines that commands print."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Lines whose words say it all, to anyone.
PLAIN = """
    model; classifier; sparse model; linear model; predictions; dataset store; test store; training set; features;
    targets; samples; samples, features; training samples, features; basis samples; seconds; error; method; for; on;
    command; state; note; attempt; memory; progress; dashboard; name; dkgp; stored; plot; pieces; compiled code;
    inputs; ended because; kept values; steps; before; after; joined; hyperparameters; search; solver; factors; bytes;
    alternative; probabilities; means by; variances of; variances by; solved by; minimised by; passes over the data;
    scores of; values; kernel entries; the model's store; coordinator's memory; a sample that is solved for; rounds of
    choosing the basis; cardinality by; milliseconds per variance; basis of each variance; log_prior; product_seconds;
    why; report; forecast; table; columns; id columns; memory; submitted; started; running time; time limit; memory
    limit; test samples
"""


def printed() -> dict[str, str]:
    """The names of rows that tables are made of, with the file that each is in."""
    names: dict[str, str] = {}
    for name in ("jobs", "layout", "model_tables", "tables"):
        path = ROOT / f"dkgp/commands/reporting/{name}.py"
        for node in ast.walk(ast.parse(path.read_text())):
            first: ast.expr | None = None
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                first = node.elts[0]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                first = node.args[0] if node.func.id in ("Figure", "may", "detail") else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names[first.value] = path.name
    return names


def test_each_line_that_needs_it_is_explained() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text().replace("\\|", "|")
    terms = re.findall(r"`([^`]+)`", page)
    plain = {" ".join(word.split()) for word in PLAIN.split(";")}
    missing = {
        name: file
        for name, file in printed().items()
        if name not in plain and not any(name == term or (" " in term and term in name) for term in terms)
    }
    assert missing == {}


def test_the_names_of_rows_are_seen() -> None:
    assert {"converged", "rounds, column passes", "coverage of 95 % intervals"} <= set(printed())
