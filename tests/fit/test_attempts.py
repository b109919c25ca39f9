"""The models that a fit tries after a bad verdict: which findings call for which, and which of them is taken."""

from __future__ import annotations

from typing import Any

import pytest

from dkgp.fit.attempts import Attempt, Attempts, remedies
from dkgp.fit.job import candidate_words


@pytest.mark.parametrize(
    ("kinds", "name", "words"),
    [
        ((), "exact", []),
        (("explains little",), "exact", []),
        (("overconfident",), "exact", ["the model with neighbours (vif)"]),
        (("underconfident",), "sparse", ["the model with neighbours (vif)"]),
        (("overconfident",), "vif", []),
        (("noise and mean",), "exact", ["noise that depends on the inputs, rbf"]),
        (
            ("overconfident", "noise and input"),
            "exact",
            ["the model with neighbours (vif)", "noise that depends on the inputs, rbf"],
        ),
    ],
)
def test_findings_call_for_models(kinds: tuple[str, ...], name: str, words: list[str]) -> None:
    assert [remedy.words for remedy in remedies(kinds, name, "rbf")] == words


def attempt(name: str, nlpd: float | None, *kinds: str) -> Attempt:
    evaluated: dict[str, Any] = {"nlpd_raw": nlpd, "rmse_raw": 1.0, "coverage_95": 0.9}
    evaluated["verdict"] = [{"kind": kind} for kind in kinds]
    return Attempt({"words": name}, {}, {}, evaluated, 2.0)


def test_the_greatest_density_is_taken() -> None:
    attempts = Attempts([attempt("a", 2.0, "overconfident"), attempt("b", 1.0), attempt("c", None)], [])
    assert attempts.taken.way == {"words": "b"}
    document = attempts.to_json()
    assert document["taken"] == 1
    assert [row["model"] for row in document["tried"]] == ["a", "b", "c"]
    assert document["tried"][0]["findings"] == ["overconfident"]
    # Of equals the first stays.
    assert Attempts([attempt("a", 2.0), attempt("b", 2.0)], []).taken.way == {"words": "a"}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, ()),
        ({"taken": "subset", "held_out": 0, "samples": 0, "candidates": []}, ("--all-samples", "none")),
        ({"taken": "subset", "held_out": 100, "samples": 900}, ("--all-samples", "none")),
        ({"taken": "all", "held_out": 100, "samples": 900}, ()),
        ({"taken": "all", "held_out": 100, "samples": 500}, ("--all-samples-seconds", "60")),
        ({"taken": "subset, variances scaled", "held_out": 0, "samples": 1000}, ()),
    ],
)
def test_commands_repeat_the_choice_among_candidates(record: dict[str, Any] | None, words: tuple[str, ...]) -> None:
    tuned = {} if record is None else {"candidates": {"candidates": [{"from": "subset"}, {"from": "all"}], **record}}
    assert candidate_words(tuned, 1000, 60.0) == words
    assert candidate_words(None, 1000, 60.0) == ()
