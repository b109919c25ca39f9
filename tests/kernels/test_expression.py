"""Kernels as text: what is understood, where it starts, and what is said of the rest."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dkgp.bench import contenders as bench_references
from dkgp.commands.info import InfoJob, run_info
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.errors import InputError
from dkgp.kernels import (
    Constant,
    Cubic,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    Scaled,
    Spherical,
    SquaredExponential,
    UserKernel,
    Wendland,
    White,
    kernel_names,
    kernel_text,
    parse_kernel,
)
from dkgp.models import Hyperparameters, write_hyperparameters
from tests.kernels.table import cauchy, smallest

NAMES = ("lat", "lon", "day")
G = 1.0 / 6.0

rbf = SquaredExponential((G, G, G))
line = Linear((1 / 3,) * 3)
constant = Constant(1.0, n_features=3)
white = White(1.0, n_features=3)


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("spherical", Spherical.from_length_scales((3.0 * math.sqrt(3.0),) * 3)),
        ("cubic(length_scale=2) + wendland[1]", Cubic.from_length_scales((2.0,) * 3) + Wendland((1 / 18,)).on((1,), 3)),
        ("wendland(isotropic=True, length_scale=0.5)", Wendland((2.0,), n_features=3)),
        ("rbf", rbf),
        ("  rbf\n", rbf),
        ("matern12", Matern12((G, G, G))),
        ("matern32 + linear", Matern32((G, G, G)) + line),
        ("matern52 * rq", Matern52((G, G, G)) * RationalQuadratic((G, G, G))),
        ("rbf + linear + white", rbf + line + white),
        ("rbf + linear * constant", rbf + line * constant),
        ("(rbf + linear) * constant", (rbf + line) * constant),
        ("0.5 * constant + white", 0.5 * constant + white),
        ("rbf * 2", 2.0 * rbf),
        ("2 * 3.5 * rbf", 7.0 * rbf),
        ("2 * rbf * 3.5", 7.0 * rbf),
        ("2e-1 * (rbf + white)", 0.2 * (rbf + white)),
        ("rbf['lat', 'lon']", SquaredExponential((0.25, 0.25)).on((0, 1), 3)),
        ('rbf["lon", "lat"]', SquaredExponential((0.25, 0.25)).on((1, 0), 3)),
        ("rbf[2]", SquaredExponential((0.5,)).on((2,), 3)),
        ("rbf[0, 'day']", SquaredExponential((0.25, 0.25)).on((0, 2), 3)),
        ("constant['day']", Constant(1.0, n_features=1).on((2,), 3)),
        ("periodic['day'](period=0.8)", Periodic((0.5,), (0.8,)).on((2,), 3)),
        ("periodic(period=0.8)['day']", Periodic((0.5,), (0.8,)).on((2,), 3)),
        ("periodic", Periodic((G, G, G), (1.0, 1.0, 1.0))),
        ("periodic(period=[1, 2, 3.5], isotropic=False)", Periodic((G, G, G), (1.0, 2.0, 3.5))),
        ("periodic(isotropic=True, period=2)", Periodic((G,), (2.0,), n_features=3)),
        ("rbf(isotropic=True)", SquaredExponential((G,), n_features=3)),
        ("rbf(length_scale=2.0)", SquaredExponential((0.125,) * 3)),
        ("rbf(length_scale=2.0, isotropic=True, variance=3)", SquaredExponential((0.125,), 3.0, n_features=3)),
        ("rbf(length_scale=[1, 2.0, 0.5])", SquaredExponential((0.5, 0.125, 2.0))),
        ("rq(alpha=0.5)", RationalQuadratic((G, G, G), alpha=0.5)),
        ("linear(isotropic=True, variance=2)", Linear((1 / 3,), 2.0, n_features=3)),
        ("polynomial", Polynomial((1 / 3,) * 3, variance=0.25)),
        (
            "polynomial(degree=3, offset=0.5, isotropic=True)",
            Polynomial((1 / 3,), 0.5, 3, variance=0.125, n_features=3),
        ),
        ("white(variance=0.1)", White(0.1, n_features=3)),
        ('user(function="tests_cauchy")', UserKernel(cauchy, (G, G, G))),
        (
            "user(function='tests_cauchy', isotropic=True, length_scale=1)[1,2]",
            UserKernel(cauchy, (0.5,), n_features=2).on((1, 2), 3),
        ),
        ("user(function='tests_min', of='pair')", UserKernel(smallest, of="pair", n_features=3)),
    ],
)
def test_expressions_are_understood(text: str, kernel: Kernel) -> None:
    found = parse_kernel(text, 3, NAMES)
    assert found == kernel
    assert found.n_features == 3


def test_every_kernel_has_a_name_and_starts_near_the_targets_variance(rng: np.random.Generator) -> None:
    X = rng.standard_normal((4000, 3))
    for name in kernel_names():
        if name != "user":
            kernel = parse_kernel(name, 3)
            assert kernel.type_name == name
            assert 0.9 < kernel.diagonal(X).mean() < 1.3


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", None, "written as an expression like 'rbf [+] linear'; got ''"),
        ("  ", None, "written as an expression"),
        (None, None, "written as an expression"),
        ("rbf + " * 3000 + "rbf", None, "at most 10000 characters"),
        ("rbv", 1, f"unknown kernel 'rbv'; expected one of {', '.join(kernel_names())}"),
        ("mattern52", 1, "Did you mean matern52?"),
        ("rbf + matern", 7, "unknown kernel 'matern'"),
        ("  rbf + matern", 9, "unknown kernel 'matern'"),
        ("rbf +", None, "not an expression"),
        ("rbf) + (linear", 4, "not an expression"),
        ("rbf linear", None, "not an expression"),
        ("rbf + 1", 7, "a number can be a factor, not a summand; write it as '0.5 [*] constant'"),
        ("1 + rbf", 1, "a number can be a factor, not a summand"),
        ("2 * 3", 1, "expected a kernel; got the number 6"),
        ("rbf - linear", 1, r"expected kernels joined by \+ and \*"),
        ("rbf ** 2", 1, r"expected kernels joined by \+ and \*"),
        ("rbf * -2", 7, r"expected kernels joined by \+ and \*"),
        ("0 * rbf", 1, "the scale of a kernel must be finite and positive; got 0.0"),
        ("rbf * 1e999", 1, "must be finite and positive; got inf"),
        ("rbf * " + "1" * 400, 7, "the number is too large"),
        ("rbf * True", 7, "expected the name of a kernel or a number; got True"),
        ("rbf * 'a'", 7, "expected the name of a kernel or a number; got 'a'"),
        ("rbf.x", 1, "expected kernels joined"),
        ("__import__('os').system('x')", 25, "settings need their names"),
        ("open('x')", 6, "settings need their names, like period=2.0"),
        ("rbf(open('x'))", 5, "settings need their names"),
        ("rbf(variance=open)", 14, "expected the name of a kernel or a number; got None"),
        ("rbf(**x)", 7, "settings need their names"),
        ("rbf[0][1]", 1, "at most once each"),
        ("rbf()(variance=1)", 1, "at most once each"),
        ("(rbf + linear)['lat']", 2, "expected the name of a kernel"),
        ("rbf['alt']", 5, "there is no feature 'alt'; expected one of 'lat', 'lon', 'day'"),
        ("rbf['lat', 'alt']", 12, "there is no feature 'alt'"),
        ("rbf[3]", 5, "feature 3 is out of range; expected 0 to 2"),
        ("rbf[-1]", 5, "expected features: names in quotes, or numbers from 0"),
        ("rbf[True]", 5, "expected features"),
        ("rbf[lat]", 5, "expected features: names in quotes"),
        ("rbf[0:2]", 5, "expected features"),
        ("rbf[()]", 5, "at least one feature, and none twice"),
        ("rbf['lat', 0]", 5, "at least one feature, and none twice"),
        ("rbf(alpha=1)", 1, "unknown setting alpha; expected one of isotropic, length_scale, variance"),
        ("linear(length_scale=1)", 1, "unknown setting length_scale"),
        ("constant(isotropic=True)", 1, "unknown setting isotropic; expected one of variance"),
        ("rbf(variance=0)", 1, "variance must be finite and positive; got 0.0"),
        ("rbf(length_scale='long')", 1, "length scales must be positive"),
        ("rbf(length_scale=0)", 1, "length scales must be positive"),
        ("rbf(length_scale=[1, 2])", 1, "length_scale takes one value, or one for each of 3 features; got 2"),
        ("rbf(length_scale=[1, 2, 3], isotropic=True)", 1, "isotropic=True takes one length_scale; got 3"),
        ("rbf(isotropic=1)", 1, "isotropic must be True or False; got 1"),
        ("periodic(period=0)", 1, r"period\[0\] must be finite and positive"),
        ("periodic(period=[1, 2])", 1, "period takes one value, or one for each of 3 features; got 2"),
        ("periodic(period='day')", 1, r"period\[0\] must be a number; got 'day'"),
        ("polynomial(degree=2.5)", 1, "degree of a polynomial kernel must be a whole number from 1; got 2.5"),
        ("polynomial(degree='two')", 1, "whole number from 1; got 'two'"),
        ("user", 1, "user needs the name of a registered function"),
        ("user(function='nobody')", 1, "no kernel function is registered as 'nobody'"),
        ("été + rbf", 1, "unknown kernel 'été'"),
        ("rbf['été'] + nix", 5, "there is no feature 'été'"),
        ("rbf(variance=1) + nix(alpha='é') + nix", 19, "unknown kernel 'nix'"),
        ("rbf\x00", None, "cannot"),
        ("lambda: rbf", 1, "expected kernels joined"),
        ("rbf if rbf else rbf", 1, "expected kernels joined"),
        ("rbf; rbf", None, "not an expression"),
        ("x = rbf", None, "not an expression"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_kernel(text, 3, NAMES)
    if column is not None:
        lines = str(caught.value).splitlines()
        assert f"at column {column}:" in lines[0]
        assert lines[-1] == "  " + " " * (column - 1) + "^"


def test_column_counts_characters_not_bytes() -> None:
    with pytest.raises(InputError, match="at column 16: there is no feature 'x'"):
        parse_kernel("rbf['é'] + rbf['x']", 2, ["é", "ü"])


def test_names_need_names_of_features() -> None:
    with pytest.raises(InputError, match="features have no names here, use numbers from 0; got 'lat'"):
        parse_kernel("rbf['lat']", 3)


@pytest.mark.parametrize("text", ["(" * 150 + "rbf" + ")" * 150, " + ".join(["rbf"] * 1500), "*".join(["2"] * 3000)])
def test_very_long_expressions_end_in_a_kernel_or_an_error(text: str) -> None:
    try:
        found = parse_kernel(text, 3)
    except InputError:
        return
    assert isinstance(found, Kernel)


@given(st.text(alphabet="rbf+*()[]'=1.,linea", max_size=25))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        found = parse_kernel(text, 2, ["a", "b"])
    except InputError:
        return
    assert isinstance(found, Kernel)


@given(
    st.recursive(
        st.sampled_from(["rbf", "linear", "constant", "matern32"]).map(lambda name: (name, parse_kernel(name, 2))),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: (f"({pair[0][0]} + {pair[1][0]})", pair[0][1] + pair[1][1])),
            st.tuples(inner, inner).map(lambda pair: (f"({pair[0][0]} * {pair[1][0]})", pair[0][1] * pair[1][1])),
            inner.map(lambda one: (f"(0.5 * {one[0]})", Scaled(one[1], 0.5))),
        ),
        max_leaves=6,
    )
)
def test_text_means_what_operators_mean(pair: tuple[str, Kernel]) -> None:
    text, kernel = pair
    X = np.random.default_rng(0).standard_normal((4, 2))
    np.testing.assert_allclose(parse_kernel(text, 2)(X, X), kernel(X, X), rtol=1e-14)


# Kernels of all kinds as people read them in `dkgp info`, and as benchmarks take them.


FEATURES = ["lat", "lon", "day"]


def test_each_part_has_its_line_with_the_features_it_is_of() -> None:
    text = "rbf['lat', 'lon'] * periodic['day'](period=0.5) + 0.25 * (linear + constant(variance=2.0))"
    lines = kernel_text(parse_kernel(text, 3, FEATURES).to_json(), FEATURES).splitlines()
    assert lines[0] == "rbf[lat, lon] * periodic[day] + 0.25 * (linear + constant)"
    assert lines[1].startswith("rbf[lat, lon]: variance 1, gamma 0.25 (lat), 0.25 (lon)")
    assert lines[2].startswith("periodic[day]: ")
    assert "period 0.5" in lines[2]
    assert lines[3] == "linear: variance 1, weight 0.3333 (lat), 0.3333 (lon), 0.3333 (day)"
    assert lines[4] == "constant: variance 2"


def test_features_without_names_have_numbers_and_many_are_cut_short() -> None:
    assert kernel_text(SquaredExponential((0.1, 0.2)).to_json()) == (
        "rbf: variance 1, gamma 0.1 (feature 0), 0.2 (feature 1)"
    )
    assert kernel_text(SquaredExponential((0.1,) * 15).to_json()).endswith("0.1 (feature 11) and 3 more")
    isotropic = kernel_text(SquaredExponential((0.1,), n_features=4).to_json())
    assert isotropic == "rbf: variance 1, gamma 0.1"


def test_a_kernel_of_some_features_within_one_of_some_features() -> None:
    inner = parse_kernel("rbf", 1).on([1], 2).on([2, 0], 3)
    assert kernel_text(inner.to_json(), FEATURES) == "rbf[lat]: variance 1, gamma 0.5"


def test_a_description_of_an_unknown_type_is_shown_all_the_same() -> None:
    shown = kernel_text({"type": "user", "function": "mine", "gamma": [0.5, 0.25], "n_features": 2})
    assert shown == "user: function mine, gamma 0.5 (feature 0), 0.25 (feature 1)"


@pytest.mark.parametrize("text", ["rbf", "matern32 + linear", "2.0 * polynomial(degree=3)"])
def test_info_shows_any_kernel(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hyper.json"
    found = Hyperparameters(parse_kernel(text, 3), 0.1, feature_names=tuple(FEATURES))
    write_hyperparameters(path, found)
    document = run_info(InfoJob(str(path)), SilentReporter())
    assert document["kernel"] == json.loads(path.read_text())["kernel"]  # the document itself is as it was
    shown = _drawn(document)
    assert "(lat)" in shown
    assert kernel_text(found.kernel.to_json(), FEATURES).splitlines()[0] in shown


@pytest.mark.parametrize("text", ["rbf", "rbf(isotropic=True, variance=1.5)", "matern32 + linear", "polynomial"])
def test_references_of_benchmarks_take_any_kernel(text: str, rng: np.random.Generator) -> None:
    found = Hyperparameters(parse_kernel(text, 3), 0.2)
    A, B, V = rng.normal(size=(40, 3)), rng.normal(size=(30, 3)), rng.normal(size=(30, 2))
    expected = found.kernel(A, B)
    np.testing.assert_allclose(bench_references.kernel_columns(A, B, found), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(bench_references.kernel_product(A, B, V, found), expected @ V, rtol=1e-9, atol=1e-11)
    matrix = bench_references.assemble(A, found)
    np.testing.assert_allclose(np.tril(matrix), np.tril(found.kernel(A, A) + 0.2 * np.eye(40)), rtol=1e-10, atol=1e-12)


def _drawn(document: dict[str, Any]) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    for table in tables(document):
        console.print(table)
    return console.export_text()
