"""Likelihoods: probabilities and their intervals against arithmetic of 300 bits at corners and inside of boxes."""

from __future__ import annotations

import json
from typing import Literal

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from dkgp.errors import InputError
from dkgp.models.classification.labels import Labels, decided
from dkgp.models.classification.likelihoods import Likelihood

TABLE = [("logit", 2), ("probit", 2), ("logit", 3), ("probit", 4), ("softmax", 3), ("softmax", 5)]


def exact(likelihood: Likelihood, row: list[mpf]) -> list[mpf]:
    """Probabilities of one row in 300 bits, of numbers that are exact."""
    with mpmath.workprec(300):

        def single(value: mpf) -> mpf:
            return (
                mpmath.erfc(-value / mpmath.sqrt(2)) / 2
                if likelihood.name == "probit"
                else 1 / (1 + mpmath.exp(-value))
            )

        if likelihood.n_outputs == 1:
            return [single(-row[0]), single(row[0])]
        each = [mpmath.exp(value) if likelihood.name == "softmax" else single(value) for value in row]
        return [value / mpmath.fsum(each) for value in each]


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_intervals_hold_the_probabilities_of_every_function_in_the_box(
    rng: np.random.Generator, name: Literal["logit", "probit", "softmax"], classes: int
) -> None:
    likelihood = Likelihood(name, classes)
    t = likelihood.n_outputs
    scale = np.array([1e-9, 0.1, 1.0, 6.0, 30.0, 200.0])[rng.integers(0, 6, size=(40, 1))]
    decisions = scale * rng.normal(size=(40, t))
    bounds = np.array([0.0, 1e-15, 1e-6, 0.1, 2.0, 50.0])[rng.integers(0, 6, size=(40, 1))] * rng.random((40, t))
    lower, upper = likelihood.intervals(decisions, bounds)
    own = np.arange(40) % classes
    targets = likelihood.targets(Labels(tuple("abcde"[:classes]), own))
    steep, flat = likelihood.slopes(targets, decisions, bounds)
    assert ((lower >= 0.0) & (upper <= 1.0)).all()
    plug_in = likelihood.probabilities(decisions)
    assert ((lower <= plug_in) & (plug_in <= upper)).all()
    np.testing.assert_allclose(plug_in.sum(axis=1), 1.0, rtol=1e-14)
    for row in range(40):
        centre, away = [mpf(v) for v in decisions[row]], [mpf(v) for v in bounds[row]]
        corners = [[-1] * t, [1] * t] + [[1 if c == k else -1 for c in range(t)] for k in range(t)]
        corners += [[-s for s in signs] for signs in corners[2:]] + [rng.uniform(-1, 1, t).tolist() for _ in range(3)]
        for signs in corners:
            with mpmath.workprec(300):
                point = [f + mpf(s) * b for f, s, b in zip(centre, signs, away, strict=True)]
            for c, known in enumerate(exact(likelihood, point)):
                assert mpf(lower[row, c]) <= known <= mpf(upper[row, c]), (decisions[row], bounds[row], signs, c)
                if likelihood.coupled:
                    with mpmath.workprec(300):
                        slope = known - mpf(targets[row, c])
                    assert mpf(steep[row, c]) <= slope <= mpf(flat[row, c])
                elif (name, classes) == ("logit", 2) and c != own[row]:
                    # -y times the probability of the other class.
                    assert mpf(steep[row, 0]) <= (known if c else -known) <= mpf(flat[row, 0])


def test_far_in_the_normal_tail_an_arguments_rounding_counts(rng: np.random.Generator) -> None:
    likelihood = Likelihood("probit", 2)
    decisions = rng.uniform(-36.0, -5.0, size=(300, 1))
    lower, upper = likelihood.intervals(decisions, np.zeros_like(decisions))
    ones = np.ones_like(decisions)
    steep, flat = likelihood.slopes(ones, decisions, 0.0 * ones)
    assert (upper[:, 1] <= lower[:, 1] * (1.0 + 1e-11)).all()
    with mpmath.workprec(300):
        for row in range(300):
            z = mpf(decisions[row, 0])
            share = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
            hazard = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi) / share
            assert mpf(lower[row, 1]) <= share <= mpf(upper[row, 1])
            assert mpf(steep[row, 0]) <= -hazard <= mpf(flat[row, 0])


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_intervals_of_small_boxes_are_no_wider_than_the_likelihood_is_steep(
    rng: np.random.Generator, name: Literal["logit", "probit", "softmax"], classes: int
) -> None:
    likelihood = Likelihood(name, classes)
    decisions = rng.normal(size=(50, likelihood.n_outputs))
    lower, upper = likelihood.intervals(decisions, np.full_like(decisions, 1e-3))
    # dp/df is at most 1/4 (logit), 1/sqrt(2 pi) (probit); of a share, twice that over the sum, which exceeds 0.1 here.
    assert (upper - lower).max() < 2e-3 * (0.5 if likelihood.n_outputs == 1 else 4.0)
    exactly = likelihood.intervals(decisions, np.zeros_like(decisions))
    assert (exactly[1] - exactly[0]).max() < 3e-13


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_hostile_decisions_and_bounds(name: Literal["logit", "probit", "softmax"], classes: int) -> None:
    likelihood = Likelihood(name, classes)
    t = likelihood.n_outputs
    ones = np.ones((1, t))
    for size in (1e3, 1e15, 1e200, 1.7e308):
        for row in (size * ones, -size * ones, size * np.linspace(-1.0, 1.0, t)[None, :] if t > 1 else 0.0 * ones):
            plug_in = likelihood.probabilities(row)
            assert np.isfinite(plug_in).all()
            assert plug_in.sum() == pytest.approx(1.0)
            for bound in (0.0, 1.0, size, np.inf):
                lower, upper = likelihood.intervals(row, bound * ones)
                assert ((lower >= 0.0) & (lower <= plug_in) & (plug_in <= upper) & (upper <= 1.0)).all()
    lower, upper = likelihood.intervals(ones, np.inf * ones)
    assert lower.max() < 1e-300
    assert upper.min() == 1.0


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_the_decided_class_is_the_most_likely(
    rng: np.random.Generator, name: Literal["logit", "probit", "softmax"], classes: int
) -> None:
    likelihood = Likelihood(name, classes)
    decisions = rng.normal(size=(200, likelihood.n_outputs))
    np.testing.assert_array_equal(decided(decisions), likelihood.probabilities(decisions).argmax(axis=1))


def test_targets_are_signs_or_one_for_the_class() -> None:
    labels = Labels(("a", "b", "c"), np.array([2, 0, 1, 1]))
    np.testing.assert_array_equal(Likelihood("probit", 3).targets(labels), labels.signs())
    np.testing.assert_array_equal(Likelihood("softmax", 3).targets(labels), np.eye(3)[labels.codes])
    two = Labels(("a", "b"), np.array([1, 0]))
    np.testing.assert_array_equal(Likelihood("logit", 2).targets(two), [[1.0], [-1.0]])
    with pytest.raises(InputError, match="there are 2 classes; the likelihood is of 3"):
        Likelihood("logit", 3).targets(two)


def test_what_links_and_ways_with_several_classes_make() -> None:
    assert Likelihood.of("logit", "softmax", 2) == Likelihood("logit", 2)
    assert Likelihood.of("probit", "softmax", 2) == Likelihood("probit", 2)
    assert Likelihood.of("logit", "softmax", 4) == Likelihood("softmax", 4)
    assert Likelihood.of("probit", "ovr", 4) == Likelihood("probit", 4)
    made = [Likelihood("logit", 2), Likelihood("logit", 3), Likelihood("softmax", 3)]
    assert [(each.n_outputs, each.coupled) for each in made] == [(1, False), (3, False), (3, True)]
    for each in made:
        assert Likelihood.from_json(json.loads(json.dumps(each.to_json()))) == each


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probit", "softmax", 3), "softmax goes with the link 'logit'"),
        (("cauchit", "ovr", 3), "the link is 'cauchit'; expected one of logit, probit"),
        (("logit", "ovo", 3), "`multi_class` is 'ovo'; expected one of softmax, ovr"),
        (("logit", "ovr", 1), "of 1 classes; expected 2 or more"),
    ],
)
def test_what_is_refused(arguments: tuple[str, str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Likelihood.of(*arguments)  # type: ignore[arg-type]


def test_shapes_that_are_refused() -> None:
    with pytest.raises(InputError, match="a likelihood 'softmax' of 2 classes; expected 3"):
        Likelihood("softmax", 2)
    with pytest.raises(InputError, match="the likelihood is 'poisson'"):
        Likelihood("poisson", 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"have shape \(4, 2\); expected \(r, 3\)"):
        Likelihood("softmax", 3).probabilities(np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"have shape \(4,\); expected \(r, 1\)"):
        Likelihood("logit", 2).intervals(np.zeros((4, 1)), np.zeros(4))
