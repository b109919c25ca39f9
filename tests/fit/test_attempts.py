"""The models that a fit tries after a bad verdict: which findings call for which, and which of them is taken."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dkgp.fit.attempts import PHRASES, Attempt, Attempts, remedies, with_advice_for_fit
from dkgp.fit.job import candidate_words, duration
from dkgp.models import verdict

CONTINUED = "hyperparameters from a longer search, with error bars scaled on held-out training samples"
APPROXIMATED = "the exact model with variances that are approximate, from neighbours (VIF)"


@pytest.mark.parametrize(
    ("kinds", "name", "words"),
    [
        ((), "exact", []),
        (("explains little",), "exact", []),
        (("overconfident",), "exact", ["the model with neighbours (vif)"]),
        (("underconfident",), "sparse", ["the model with neighbours (vif)"]),
        (("overconfident",), "vif", []),
        (("overconfident",), "vif, not judged", [CONTINUED]),
        (("noise and mean",), "vif, not judged", ["noise that depends on the inputs, rbf"]),
        (("underconfident",), "exact, not judged", [CONTINUED, "the model with neighbours (vif)"]),
        (("loose intervals",), "exact", [APPROXIMATED, "the model with neighbours (vif)"]),
        (("loose intervals",), "sparse", ["the model with neighbours (vif)"]),
        (("noise and mean",), "exact", ["noise that depends on the inputs, rbf"]),
        (
            ("overconfident", "noise and input"),
            "exact",
            ["the model with neighbours (vif)", "noise that depends on the inputs, rbf"],
        ),
    ],
)
def test_findings_call_for_models(kinds: tuple[str, ...], name: str, words: list[str]) -> None:
    name, _, unjudged = name.partition(", ")
    found = remedies(kinds, name, "rbf", judged=not unjudged)
    assert [remedy.words for remedy in found] == words
    for remedy in found:
        options = remedy.options("hyper.json", 9.0)
        assert options == (
            {"start": "hyper.json", "all_samples_seconds": 9.0}
            if remedy.continues
            else {"kernel": remedy.kernel, "noise_model": "auto"}
        )
        # One that starts from a result takes less than a search from the start; the others of these do not tune.
        assert remedy.price(10.0) == (2.0 if remedy.continues else 10.0 if remedy.tuning else 0.0)


def attempt(name: str, nlpd: float | None, *kinds: str, rmse: float = 1.0, coverage: float = 0.9) -> Attempt:
    evaluated: dict[str, Any] = {"nlpd_raw": nlpd, "rmse_raw": rmse, "coverage_95": coverage}
    evaluated["verdict"] = [{"kind": kind} for kind in kinds]
    return Attempt({"words": name}, {}, {}, evaluated, 2.0)


def test_the_greatest_density_is_taken() -> None:
    attempts = Attempts([attempt("a", 2.0, "overconfident"), attempt("b", 1.0), attempt("c", None)], [])
    assert attempts.taken.way == {"words": "b"}
    document = attempts.to_json()
    assert document["taken"] == 1
    assert [row["model"] for row in document["tried"]] == ["a", "b", "c"]
    assert document["tried"][0]["findings"] == ["overconfident"]
    assert attempts.choice["way"] == {"words": "b"}
    assert "is 2 nats per sample with it, and 1 with this model" in attempts.choice["reason"]
    # Of equals the first stays.
    equals = Attempts([attempt("a", 2.0), attempt("b", 1.999)], [])
    assert equals.taken.way == {"words": "a"}
    assert equals.choice == {"way": {"words": "a"}}


@pytest.mark.parametrize(
    ("variance", "kinds"),
    [
        ({"gap": 0.02, "gap_mean": 0.3}, ("overconfident", "loose intervals")),
        ({"gap": 0.02, "gap_mean": 0.019}, ("overconfident",)),
        ({"way": "vif", "approximate": True}, ("overconfident",)),  # without intervals
        ({"gap_mean": 0.3}, ("overconfident",)),  # a sparse model's, which have no gap to meet
        (None, ("overconfident",)),
    ],
)
def test_intervals_wider_than_their_gap_are_a_finding(variance: dict[str, Any] | None, kinds: tuple[str, ...]) -> None:
    judged = replace(attempt("a", 1.0, "overconfident"), predicted={"variance": variance})
    assert judged.kinds == kinds
    assert judged.row()["findings"] == list(kinds)


@pytest.mark.parametrize(
    ("rmse", "coverage", "is_taken"),
    [
        (1.0, 0.94, True),
        (1.019, 0.94, True),
        (1.021, 0.94, False),  # structure was taken for noise
        (0.5, 0.96, True),
        (0.5, 0.92, False),
        (0.5, 0.98, False),
    ],
)
def test_a_greater_density_does_not_buy_errors_or_coverage(rmse: float, coverage: float, is_taken: bool) -> None:
    first, later = attempt("a", 2.0, coverage=0.951), attempt("b", 1.0, rmse=rmse, coverage=coverage)
    assert Attempts([first, later], []).taken is (later if is_taken else first)
    # A first model whose coverage is worse loses to one that is less far from .95.
    assert Attempts([attempt("a", 2.0, coverage=0.8), attempt("b", 1.0, coverage=0.85)], []).taken.nlpd == 1.0


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, ()),
        ({"taken": "subset", "held_out": 0, "samples": 0, "candidates": []}, ("--all-samples", "none")),
        ({"taken": "subset", "held_out": 100, "learned_from": 900}, ("--all-samples", "none")),
        ({"taken": "all", "held_out": 100, "learned_from": 900}, ()),
        ({"taken": "all", "held_out": 100, "learned_from": 500}, ("--all-samples-seconds", "60")),
        ({"taken": "subset, variances scaled", "held_out": 0, "samples": 1000}, ()),
    ],
)
def test_commands_repeat_the_choice_among_candidates(record: dict[str, Any] | None, words: tuple[str, ...]) -> None:
    tuned = {} if record is None else {"candidates": {"candidates": [{"from": "subset"}, {"from": "all"}], **record}}
    assert candidate_words(tuned, 1000, 60.0) == words
    # A smaller subset is another search.
    from_subset = record is None or record["taken"] == "subset"
    smaller = ("--subset", "500") if from_subset else ("--all-samples-seconds", "60")
    assert candidate_words({**tuned, "subset_size": 500}, 1000, 60.0) == smaller
    assert candidate_words(None, 1000, 60.0) == ()


def test_the_advice_of_a_fit_names_its_own_options() -> None:
    advice = (
        "Take the logarithm of the target: run `dkgp ingest` again with `transform` log; or let the noise depend on "
        + ("the inputs: run `dkgp tune` with `noise_model` auto")
    )
    evaluated = with_advice_for_fit({"verdict": [{"kind": "noise and mean", "advice": advice}]})
    assert evaluated["verdict"][0]["advice"] == "Take the logarithm of the target: fit again with `transform` log"
    assert with_advice_for_fit({"n": 3}) == {"n": 3}


def test_each_replaced_phrase_is_one_of_a_verdict() -> None:
    tree = ast.parse(Path(verdict.__file__).read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [phrase for phrase, _ in PHRASES if not any(phrase in text for text in texts)] == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("5min", 300.0), ("1d", 86400.0)]
)
def test_durations_have_short_and_long_units(text: str, seconds: float) -> None:
    assert duration(text) == seconds
