"""Putting kernels together: operators, names, one amplitude each, white noise taken out, programs, descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import (
    ActiveDimensions,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Parameter,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    White,
    fold_white,
    kernel_from_json,
)
from dkgp.kernels import program as tile

rbf = SquaredExponential((0.5, 0.1), variance=1.5)
matern = Matern32((0.3, 0.7), variance=0.4)
line = Linear(n_features=2)
curve = Polynomial(n_features=2)


def test_operators_build_flat_sums_and_products() -> None:
    assert rbf + matern == Sum((rbf, matern))
    assert rbf + matern + line == Sum((rbf, matern, line)) == rbf + (matern + line)
    assert rbf * matern * line == Product((rbf, matern, line)) == rbf * (matern * line)
    assert (rbf + matern) * line == Product((Sum((rbf, matern)), line))


@pytest.mark.parametrize("number", [2, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2)])
def test_numbers_of_all_kinds_scale(number: float) -> None:
    assert number * rbf == rbf * number == Scaled(rbf, 2.0)
    assert isinstance((number * rbf).scale, float)


@pytest.mark.parametrize("other", [1.0, "rbf", None, True, np.ones(2)])
def test_only_kernels_are_added(other: object) -> None:
    with pytest.raises(TypeError):
        rbf + other
    if not isinstance(other, float):
        with pytest.raises(TypeError):
            rbf * other


@pytest.mark.parametrize("number", [0, -1.0, float("nan"), float("inf")])
def test_scales_are_positive(number: float) -> None:
    with pytest.raises(InputError, match="the scale of a kernel must be finite and positive; got"):
        number * rbf


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sum((rbf,)), "a kernel of type 'sum' needs at least two parts; got 1"),
        (lambda: Product(()), "a kernel of type 'product' needs at least two parts; got 0"),
        (lambda: Sum((rbf, 1.0)), "made of kernels; got 1.0"),
        (lambda: rbf + SquaredExponential((1.0,) * 3), r"same number of features; got \[2, 3\].*kernel.on\(features"),
        (lambda: Scaled(1.0, 1.0), "made of a kernel; got 1.0"),
        (lambda: ActiveDimensions("rbf", (0,), 2), "made of a kernel; got 'rbf'"),
        (lambda: rbf.on((0, 2), 2), r"features\[1\] must be from 0 to 1, for inputs with 2 features; got 2"),
        (lambda: rbf.on((0, -1), 2), r"features\[1\] must be from 0 to 1, for inputs with 2 features; got -1"),
        (lambda: rbf.on((0, 0), 2), r"at least one, and none twice; got \[0, 0\]"),
        (lambda: Constant(1.0).on((), 2), r"at least one, and none twice; got \[\]"),
        (lambda: rbf.on((0, 1, 2), 3), r"a kernel of 2 features cannot be on 3, \[0, 1, 2\]"),
        (lambda: rbf.on((0, 1.0), 3), r"features\[1\] must be a whole number; got 1.0"),
        (lambda: rbf.on((0, 1), True), "n_features must be a whole number; got True"),
    ],
)
def test_what_does_not_fit_is_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_constants_fit_any_number_of_features() -> None:
    kernel = rbf + Constant(0.5)
    assert kernel.n_features == 2
    assert (Constant(0.5) + White(0.1)).n_features == 0
    np.testing.assert_array_equal(Constant(0.5)(np.zeros((2, 7)), np.zeros((1, 7))), [[0.5], [0.5]])
    with pytest.raises(InputError, match="expected rows of 3 features"):
        Constant(0.5, n_features=3)(np.zeros((2, 7)), np.zeros((1, 7)))


def names(kernel: Kernel) -> list[str]:
    return [f"{p.name}" + ("" if p.feature is None else f"[{p.feature}]") for p in kernel.parameters()]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (rbf, "gamma[0] gamma[1] variance"),
        (SquaredExponential(0.5, n_features=2), "gamma variance"),
        (SquaredExponential((0.0, 0.5)), "gamma[1] variance"),
        (RationalQuadratic((0.5, 0.5)), "gamma[0] gamma[1] variance alpha"),
        (Periodic((0.5, 0.5), 2.0), "gamma[0] gamma[1] period variance"),
        (Periodic((0.5, 0.0), (2.0, 3.0)), "gamma[0] period[0] variance"),
        (line, "variance"),
        (Linear((1.0, 0.5)), "weight[0] weight[1]"),
        (curve, "offset variance"),
        (Polynomial((1.0, 0.0), offset=0.0), "weight[0]"),
        (Constant(), "variance"),
        # A product has one amplitude, a multiple its own.
        (rbf * matern, "rbf.gamma[0] rbf.gamma[1] rbf.variance matern32.gamma[0] matern32.gamma[1]"),
        (Linear((1.0, 0.5)) * matern * Constant(), "linear.weight[0] linear.weight[1]" + 3 * " m"),
        (2.0 * rbf, "gamma[0] gamma[1] scale"),
        (3.0 * (2.0 * line), "scale"),
        (2.0 * (rbf + line), "rbf.gamma[0] rbf.gamma[1] rbf.variance linear.variance scale"),
        # Parts are named by their kind, twins by numbers, active dimensions by what they are of.
        (line + 2.0 * curve, "linear.variance polynomial.offset polynomial.scale"),
        (line + Constant() + line, "linear#1.variance constant.variance linear#2.variance"),
        (
            SquaredExponential((0.5,)).on([1], 2) * line + Constant(),
            "product.rbf.gamma[1] product.rbf.variance constant.variance",
        ),
        (SquaredExponential(0.5, n_features=2).on([3, 1], 4), "gamma variance"),
        (SquaredExponential((0.5, 0.5)).on([3, 1], 4), "gamma[3] gamma[1] variance"),
    ],
    ids=repr,
)
def test_parameters_are_named_by_their_path(kernel: Kernel, expected: str) -> None:
    expected = expected.replace(" m m m", " matern32.gamma[0] matern32.gamma[1] matern32.variance")
    assert names(kernel) == expected.split()


# -------------------------------------------------------------------------------------------------------------- white


@pytest.mark.parametrize(
    ("kernel", "left", "noise"),
    [
        (rbf, rbf, 0.0),
        (rbf + White(0.2), rbf, 0.2),
        (White(0.2) + rbf + White(0.3) + line, rbf + line, 0.5),
        (3.0 * (rbf + White(0.2)), 3.0 * rbf, 0.6),
        (3.0 * (rbf + matern + White(0.2)) + line, 3.0 * (rbf + matern) + line, 0.6),
        (matern + rbf * White(0.2), matern, 0.3),
        # (1.5 f + 0.2 delta) (0.4 g + 0.1 delta) on the diagonal: (1.7) (0.5) - 1.5 * 0.4 more than without.
        ((rbf + White(0.2)) * (matern + White(0.1)), rbf * matern, 0.25),
        (line + (rbf + White(0.2)).on((1, 0), 2), line + rbf.on((1, 0), 2), 0.2),
        (line + White(0.7) * White(2.0), line, 1.4),
        (line + (Constant(0.5) + White(0.2)).on((1,), 2), line + Constant(0.5).on((1,), 2), 0.2),
    ],
    ids=repr,
)
def test_white_noise_is_folded_into_the_noise(
    kernel: Kernel, left: Kernel, noise: float, rng: np.random.Generator
) -> None:
    folded, variance = fold_white(kernel, 0.01)
    assert folded == left
    assert variance == pytest.approx(0.01 + noise, rel=1e-14)
    A = rng.standard_normal((6, 2))
    np.testing.assert_allclose(kernel(A, A) + 0.01 * np.eye(6), folded(A, A) + variance * np.eye(6), rtol=1e-13)
    assert not any(isinstance(part, White) for part in folded.walk())


def test_without_white_noise_nothing_changes() -> None:
    kernel = 2.0 * (rbf + line) * matern
    assert fold_white(kernel, 0.3)[0] is kernel
    assert fold_white(kernel, 0.3)[1] == 0.3


@pytest.mark.parametrize("kernel", [White(0.1), White(0.1) + 2.0 * White(0.3), rbf * White(0.1)])
def test_nothing_but_white_noise_is_refused(kernel: Kernel) -> None:
    with pytest.raises(InputError, match="nothing but white noise.*add another kernel"):
        fold_white(kernel, 0.01)


@pytest.mark.parametrize("kernel", [line * White(0.1) + rbf, (line + White(0.1)) * (line + White(0.1))])
def test_white_noise_that_is_not_the_same_everywhere_is_refused(kernel: Kernel) -> None:
    with pytest.raises(InputError, match="type 'linear', which is not stationary"):
        fold_white(kernel, 0.01)


def test_white_noise_tells_samples_from_their_twins(rng: np.random.Generator) -> None:
    A = rng.standard_normal((3, 2))
    np.testing.assert_array_equal(White(0.5)(A, A.copy()), np.zeros((3, 3)))
    np.testing.assert_array_equal(White(0.5)(A, A), 0.5 * np.eye(3))
    listed = A.tolist()
    np.testing.assert_array_equal((rbf + White(0.5)).on((1, 0), 2)(listed, listed).diagonal(), np.full(3, 2.0))


def test_white_noise_has_no_program() -> None:
    with pytest.raises(InputError, match=r"fold_white\(kernel, noise_variance\)"):
        (rbf + 0.5 * White(0.1)).tile_program()


# ----------------------------------------------------------------------------------------------------------- programs


def steps(kernel: Kernel) -> list[str]:
    shown = {tile.Leaf: "leaf", tile.Constant: "constant", tile.Scale: "scale", tile.Add: "add"}
    return [shown.get(type(step), "multiply") for step in Kernel.tile_program(kernel).steps]


@pytest.mark.parametrize(
    ("kernel", "expected", "amplitude"),
    [
        (rbf, "leaf", 1.5),
        (2.0 * (3.0 * rbf), "leaf", 9.0),
        (rbf * Constant(2.0), "leaf", 3.0),
        (Constant(2.0) * Constant(0.25), "constant", 0.5),
        (rbf + matern, "leaf leaf scale add", 1.5),
        (matern * (1.5 / 0.4) + rbf, "leaf leaf add", 1.5),
        (rbf + 0.5 * Constant(0.2), "leaf constant add", 1.5),
        (2.0 * rbf * matern, "leaf leaf multiply", 1.2),
        ((rbf + line) * matern, "leaf leaf scale add leaf multiply", 0.6),
    ],
    ids=repr,
)
def test_factors_become_steps_only_where_they_must(kernel: Kernel, expected: str, amplitude: float) -> None:
    assert steps(kernel) == expected.split()
    assert Kernel.tile_program(kernel).amplitude == pytest.approx(amplitude, rel=1e-14)


def test_leaves_share_groups_and_skip_features_without_weight() -> None:
    kernel = line.on((3, 1), 4) + curve.on((3, 1), 4) + SquaredExponential((0.0, 0.0, 0.5, 0.0))
    program = Kernel.tile_program(kernel)
    product = tile.InputGroup((3, 1), (1.0, 1.0), product=True)
    assert program.groups[0] == product
    assert [group.features for group in program.groups] == [(3, 1), (2,)]
    assert Kernel.tile_program(SquaredExponential((0.0, 0.0))).groups == (tile.InputGroup((), ()),)


# ------------------------------------------------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"type": "sum"}, 'type "sum" needs "parts", a list of kernels; got None'),
        ({"type": "sum", "parts": "rbf"}, "needs \"parts\", a list of kernels; got 'rbf'"),
        ({"type": "sum", "parts": []}, "at least two parts; got 0"),
        ({"type": "scaled", "kernel": {"type": "constant"}}, 'type "scaled" needs "scale"; got'),
        ({"type": "scaled", "scale": True, "kernel": {"type": "constant"}}, "must be a number; got True"),
        ({"type": "scaled", "scale": 2.0}, 'in kernel: a kernel description needs a "type"; got None'),
        ({"type": "on", "kernel": {"type": "constant"}}, 'type "on" needs "features"'),
        ({"type": "on", "features": [0], "kernel": {"type": "constant"}}, 'type "on" needs "n_features"'),
        ({"type": "rbf", "gamma": [1.0], "n_features": 2.5}, '"n_features" must be a whole number; got 2.5'),
        ({"type": "rbf", "gamma": [1.0, 2.0], "n_features": 3}, "each of 3 features, or one for all; got 2"),
        ({"type": "rbf", "gamma": ["1.0"]}, r"gamma\[0\] must be a number; got '1.0'"),
        ({"type": "rbf", "gamma": [True]}, r"gamma\[0\] must be a number; got True"),
        ({"type": "rbf", "gamma": [1.0], "variance": "2"}, "variance must be a number; got '2'"),
        ({"type": "rq", "gamma": [1.0], "alpha": -1.0}, "alpha must be finite and positive; got -1.0"),
        ({"type": "periodic", "gamma": [1.0]}, 'type "periodic" needs "period"'),
        ({"type": "periodic", "gamma": [1.0], "period": [0.0]}, r"period\[0\] must be finite and positive; got 0.0"),
        ({"type": "periodic", "gamma": [1.0, 1.0], "period": [1.0] * 3}, "gamma needs one value for each of 3"),
        ({"type": "linear", "weight": [0.0, 0.0]}, "weight must be positive for at least one feature"),
        ({"type": "linear"}, 'type "linear" needs "weight"'),
        ({"type": "polynomial", "weight": [1.0], "offset": 1.0}, 'type "polynomial" needs "degree"'),
        ({"type": "polynomial", "weight": [1.0], "offset": 1.0, "degree": 0}, "whole number from 1; got 0"),
        ({"type": "polynomial", "weight": [1.0], "offset": -1.0, "degree": 2}, "the offset must be finite and"),
        ({"type": "white", "variance": 0.0}, "variance must be finite and positive; got 0.0"),
        ({"type": "constant", "n_features": -1}, "n_features must be a whole number from 1, or left out; got -1"),
        (
            {"type": "sum", "parts": [{"type": "constant"}, {"type": "scaled", "scale": 1.0, "kernel": {"type": "x"}}]},
            r"in parts\[1\].kernel: unknown kernel type 'x'",
        ),
        (
            {
                "type": "product",
                "parts": [
                    {"type": "on", "features": [0], "n_features": 2, "kernel": {"type": "rbf", "gamma": [-1.0]}},
                    {"type": "constant"},
                ],
            },
            r"^in parts\[0\].kernel: gamma\[0\] must be finite and positive; got -1.0$",
        ),
    ],
)
def test_bad_descriptions_name_the_part(document, message: str) -> None:
    with pytest.raises(InputError, match=message):
        kernel_from_json(document)


def test_description_that_is_nested_too_deeply_is_refused() -> None:
    document: dict = {"type": "constant"}
    for _ in range(3000):
        document = {"type": "scaled", "scale": 1.0, "kernel": document}
    with pytest.raises(InputError, match="nested too deeply"):
        kernel_from_json(document)


# ---------------------------------------------------------------------------------------------------------- numerics


@pytest.mark.parametrize("family", [SquaredExponential, Matern32, Matern52, RationalQuadratic])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_values_by_products_keep_near_and_far_rows(family, scale: float, rng: np.random.Generator) -> None:
    kernel = family((2.0 / scale**2,) * 3)
    A = 1e4 * scale + scale * rng.standard_normal((40, 3))
    B = A + scale * 10.0 ** rng.uniform(-12.0, 0.0, (40, 1)) * rng.standard_normal((40, 3))
    B[:10] = A[:10]
    np.testing.assert_allclose(kernel.matrix(A, B), kernel(A, B), atol=1e-12)


def test_rough_kernel_at_coinciding_rows_is_exact_and_its_gradient_finite(rng: np.random.Generator) -> None:
    kernel = Matern12((2.0, 0.3))
    A = rng.standard_normal((30, 2))
    B = np.vstack([A[::-1], A + 1e-9])
    np.testing.assert_allclose(kernel.matrix(A, B), kernel(A, B), atol=1e-12)
    same = np.zeros((30, 60))
    same[np.arange(30), 29 - np.arange(30)] = 1.0
    np.testing.assert_array_equal(kernel.contract(A, B, same), [0.0, 0.0, 30.0])
    assert np.all(np.abs(kernel.contract(A, B, np.ones((30, 60)))) < 1e4)


@dataclass(frozen=True)
class _Asked(SquaredExponential):
    """Counts how often it is asked for its parameters."""

    times: ClassVar[list[int]] = []

    def parameters(self) -> tuple[Parameter, ...]:
        self.times.append(1)
        return super().parameters()


def _nested(depth: int) -> Kernel:
    """A sum of products of sums ..., each level also scaled and placed, around one kernel that counts."""
    kernel: Kernel = _Asked((0.5, 0.1), variance=1.5)
    for _ in range(depth):
        kernel = (2.0 * (kernel * line + matern) * curve).on([1, 0], 2)
    return kernel


@pytest.mark.parametrize("depth", [1, 4])
def test_each_part_is_asked_once_for_its_parameters(depth: int) -> None:
    kernel = _nested(depth)
    _Asked.times.clear()
    count = len(kernel.parameters())
    assert len(_Asked.times) == 1
    assert kernel.amplitude_index is not None
    assert kernel.parameters()[kernel.amplitude_index].name == "sum.scale"
    # Each of five levels a round checks the number of values, and then makes its parts anew.
    _Asked.times.clear()
    other = kernel.with_parameters(np.arange(1.0, count + 1.0))
    assert len(_Asked.times) <= 2 * (5 * depth + 1)
    np.testing.assert_array_equal([parameter.value for parameter in other.parameters()], np.arange(1.0, count + 1.0))
