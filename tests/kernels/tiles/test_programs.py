"""Every profile, sums and products of them against plain NumPy; and what the engine rests on: bits, zeros, bounds."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.errors import InputError
from dkgp.kernels import TileEvaluator, parse_kernel
from dkgp.kernels.dot_product import POLYNOMIAL
from dkgp.kernels.program import PROFILES, Add, Constant, InputGroup, Leaf, Multiply, Profile, Scale, TileProgram
from dkgp.kernels.stationary import EXP2, MATERN12, MATERN32, MATERN52, RATIONAL_QUADRATIC, STABLE
from dkgp.kernels.user import USER
from tests.kernels.tiles.programs import COMPACT, RADIAL, ProgramKernel, kernel_of, leaf_kernel, random_program

# Relative to the kernel's scale; of a product, times the sum of the weights' absolute values.
BOUND = {"single": 1e-5, "double": 1e-12}
DTYPE = {"single": np.float32, "double": np.float64}
SMALLEST_NORMAL = {"single": 2.0**-126, "double": 2.0**-1022}
KINDS = (*RADIAL, POLYNOMIAL)


def check(
    kernel: ProgramKernel, X: np.ndarray, Z: np.ndarray, precision: str, expanded: bool | None, targets: int = 2
) -> None:
    """Tile, product and pair of one kernel against the plain evaluation."""
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    rng = np.random.default_rng(1)
    A, B, K = evaluator.prepare(X), evaluator.prepare(Z), kernel(X, Z)
    W, V = rng.standard_normal((len(Z), targets)), rng.standard_normal((len(X), targets))
    bound = BOUND[precision] * kernel.scale(X, Z)
    tile = evaluator.tile(A, B)
    assert tile.dtype == DTYPE[precision]
    assert tile.shape == K.shape
    assert np.abs(tile - K).max(initial=0.0) <= bound
    left, right = evaluator.pair(A, B, W, V)
    for found, expected, weights in (
        (evaluator.matmat(A, B, W), K @ W, W), (left, K @ W, W), (right, K.T @ V, V)
    ):  # fmt: skip
        assert (found.shape, found.dtype) == (expected.shape, np.float64)
        assert np.all(np.abs(found - expected) <= bound * np.abs(weights).sum(axis=0))


@pytest.mark.covering(2)
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 13, 40, 90])
@pytest.mark.parametrize("profile", KINDS, ids=lambda profile: profile.name.lower())
def test_every_profile_agrees_with_plain_numpy(
    rng: np.random.Generator, profile: Profile, d: int, precision: str, expanded: bool
) -> None:
    kernel = leaf_kernel(profile, d, scale=rng.uniform(0.4, 1.4, d) / math.sqrt(d), amplitude=1.7)
    X, Z = rng.standard_normal((83, d)), rng.standard_normal((37, d))
    Z[:5] = X[:5]
    check(kernel, X, Z, precision, expanded)
    values = kernel(X, Z)
    assert np.ptp(values) > 0.1  # not one constant for another


@pytest.mark.spread(40)
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (16, 16), (17, 15), (511, 3), (513, 129), (0, 4), (4, 0)])
@pytest.mark.parametrize("profile", KINDS, ids=lambda profile: profile.name.lower())
def test_awkward_sizes(rng: np.random.Generator, profile: Profile, shape: tuple[int, int], precision: str) -> None:
    kernel = leaf_kernel(profile, 3)
    check(kernel, rng.standard_normal((shape[0], 3)), rng.standard_normal((shape[1], 3)), precision, None)


@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 24),
    leaves=st.integers(1, 7),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    targets=st.integers(1, 4),
    amplitude=st.floats(0.01, 100.0),
    precision=st.sampled_from(["single", "double"]),
    expanded=st.sampled_from([None, False, True]),
)
def test_any_program_agrees_with_plain_numpy(seed, d, leaves, shape, targets, amplitude, precision, expanded) -> None:
    rng = np.random.default_rng(seed)
    kernel = random_program(rng, d, leaves, amplitude)
    X, Z = rng.standard_normal((shape[0], d)), rng.standard_normal((shape[1], d))
    check(kernel, X, Z, precision, expanded, targets)


@pytest.mark.parametrize("alpha", [1e-2, 1.0, 1e3, 1e6])
def test_rational_quadratic_of_any_shape(rng: np.random.Generator, precision: str, alpha: float) -> None:
    # As the kernel class scales its inputs: s = r^2 / alpha. 1 + s rounded would lose alpha roundings.
    kernel = leaf_kernel(RATIONAL_QUADRATIC, 2, (alpha,), scale=(alpha**-0.5,) * 2)
    X = rng.standard_normal((200, 2)) * 10.0 ** rng.uniform(-4.0, 1.0, (200, 1))
    check(kernel, X, X[:50], precision, False)


@pytest.mark.covering
@pytest.mark.parametrize("profile", KINDS, ids=lambda profile: profile.name.lower())
@pytest.mark.parametrize("d", [3, 12])
def test_bits_of_a_row_depend_on_nothing_beside_it(
    rng: np.random.Generator, profile: Profile, d: int, precision: str, expanded: bool
) -> None:
    evaluator = TileEvaluator(leaf_kernel(profile, d), precision, expanded=expanded)
    require_row_bits(rng, evaluator, d)


def test_bits_of_a_row_of_sums_and_products(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    for leaves in (2, 3, 5):
        require_row_bits(rng, TileEvaluator(random_program(rng, 9, leaves, 1.3), precision, expanded=expanded), 9)


def require_row_bits(rng: np.random.Generator, evaluator: TileEvaluator, d: int) -> None:
    X, W = rng.standard_normal((700, d)), rng.standard_normal((150, 2))
    A, B = evaluator.prepare(X), evaluator.prepare(rng.standard_normal((150, d)))
    product, tile = evaluator.matmat(A, B, W), evaluator.tile(A, B)
    for indices in (
        np.arange(1), np.arange(699, 700), np.arange(5, 22), np.full(40, 7), np.arange(500, 531), np.arange(511, 575),
        rng.permutation(700),
    ):  # fmt: skip
        for rows in (A.take(indices), evaluator.prepare(X[indices])):
            np.testing.assert_array_equal(evaluator.matmat(rows, B, W), product[indices])
            np.testing.assert_array_equal(evaluator.tile(rows, B), tile[indices])


@pytest.mark.parametrize("profile", RADIAL, ids=lambda profile: profile.name.lower())
@pytest.mark.parametrize("d", [1, 7])
def test_a_row_with_itself_is_the_amplitude_to_the_bit(
    rng: np.random.Generator, profile: Profile, d: int, precision: str
) -> None:
    evaluator = TileEvaluator(leaf_kernel(profile, d, amplitude=2.7), precision, expanded=False)
    tile = evaluator.tile(*[evaluator.prepare(10.0 * rng.standard_normal((60, d)))] * 2)
    np.testing.assert_array_equal(tile.diagonal(), np.full(60, DTYPE[precision](2.7)))
    np.testing.assert_array_equal(tile, tile.T)


def test_a_row_with_itself_in_a_sum_and_a_product(rng: np.random.Generator, precision: str) -> None:
    group = InputGroup((0, 1), (0.7, 1.1))
    one, other = Leaf(0, MATERN32), Leaf(0, RATIONAL_QUADRATIC, (2.0,))
    X = rng.standard_normal((40, 2))
    for steps, expected in (
        ((one, Scale(0.3), other, Scale(0.25), Add()), DTYPE[precision](0.3) + DTYPE[precision](0.25)),
        ((one, Scale(0.3), other, Scale(2.0), Multiply()), DTYPE[precision](0.6)),
        ((one, Constant(1.5), Add()), DTYPE[precision](2.5)),
    ):
        evaluator = TileEvaluator(kernel_of(2, [group], *steps), precision)
        found = evaluator.tile(*[evaluator.prepare(X)] * 2).diagonal()
        np.testing.assert_allclose(found, np.full(40, expected), rtol=np.finfo(DTYPE[precision]).eps)
        assert len(set(found.tolist())) == 1


@pytest.mark.parametrize("profile", RADIAL, ids=lambda profile: profile.name.lower())
def test_far_points_are_next_to_nothing_and_never_denormal(
    rng: np.random.Generator, profile: Profile, precision: str, expanded: bool
) -> None:
    far = np.concatenate([np.linspace(0.0, 60.0, 501), np.logspace(1.8, 15.0, 499)])[:, None]
    # The rational quadratic has no far: its power is made a large one.
    kernel = leaf_kernel(profile, 1, (200.0,) if profile == RATIONAL_QUADRATIC else ())
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    found = evaluator.tile(evaluator.prepare(far), evaluator.prepare([[0.0]]))[:, 0].astype(float)
    assert np.isfinite(found).all()
    assert np.all(np.diff(found) <= 2.0 ** (-23 if precision == "single" else -52) * found[:-1] * 100.0)
    if profile in COMPACT:
        assert found[far[:, 0] < 0.9].min() > 0.0
        assert (found[far[:, 0] > 1.0] == 0.0).all()
    else:
        assert SMALLEST_NORMAL[precision] <= found[-1] <= 2.0**-80


@pytest.mark.parametrize("factors", [2, 3, 4])
def test_products_of_far_points_are_not_denormal_either(precision: str, factors: int) -> None:
    groups = [InputGroup((0,), (1.0 + number,)) for number in range(factors)]
    leaves = [Leaf(number, (MATERN32, EXP2)[number % 2]) for number in range(factors)]
    steps = [leaves[0], *(step for leaf in leaves[1:] for step in (leaf, Multiply()))]
    evaluator = TileEvaluator(kernel_of(1, groups, *steps), precision)
    found = evaluator.tile(evaluator.prepare(np.linspace(0.0, 2000.0, 999)[:, None]), evaluator.prepare([[0.0]]))
    assert SMALLEST_NORMAL[precision] <= found.min() < 2.0**-75
    assert found[0, 0] == 1.0


def exact_inputs(rng: np.random.Generator, n: int, d: int, precision: str) -> np.ndarray:
    """Inputs of scale one that the precision holds exactly: what a tile adds is then its own error alone."""
    return np.asarray(rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-3.0, 0.5, (n, 1)), DTYPE[precision]).astype(
        np.float64
    )


@pytest.mark.spread(12)
@pytest.mark.covering(2)
@pytest.mark.parametrize("d", [1, 3, 20, 90])
@pytest.mark.parametrize("profile", KINDS, ids=lambda profile: profile.name.lower())
def test_entry_error_bounds_every_entry(rng: np.random.Generator, profile: Profile, d: int, precision: str) -> None:
    for parameters in {RATIONAL_QUADRATIC: [(0.5,), (2.0,), (30.0,)], STABLE: [(1.0,), (1.4,), (2.0,)]}.get(
        profile, [()]
    ):
        kernel = leaf_kernel(profile, d, parameters, scale=np.ones(d), amplitude=1.5)
        evaluator = TileEvaluator(kernel, precision, expanded=False)
        X, Z = exact_inputs(rng, 300, d, precision), exact_inputs(rng, 100, d, precision)
        Z[:50] = X[:50] + 0.125 * np.round(8.0 * Z[:50])
        Z = np.asarray(Z, DTYPE[precision]).astype(np.float64)
        off = np.abs(evaluator.tile(evaluator.prepare(X), evaluator.prepare(Z)) - kernel(X, Z, np.longdouble)).max()
        unit = float(np.finfo(DTYPE[precision]).eps) * kernel.scale(X, Z)
        assert off <= evaluator.entry_error * unit
        # And it is of use: no more than some tens of roundings beyond its share of each input, a power of a polynomial.
        assert evaluator.entry_error <= 20.0 + (0.5 if profile != POLYNOMIAL else 4.0) * (d + 10)


@given(seed=st.integers(0, 2**32 - 1), leaves=st.integers(2, 5), precision=st.sampled_from(["single", "double"]))
def test_entry_error_bounds_sums_and_products(seed: int, leaves: int, precision: str) -> None:
    rng = np.random.default_rng(seed)
    kernel = random_program(rng, 4, leaves, 1.5)
    # Scales of one, and no circles: their inputs are rounded.
    groups = tuple(InputGroup(g.features, (1.0,) * len(g.features), None, g.product) for g in kernel.program.groups)
    kernel = ProgramKernel(4, TileProgram(groups, kernel.program.steps, 1.5))
    evaluator = TileEvaluator(kernel, precision, expanded=False)
    X = exact_inputs(rng, 60, 4, precision)
    off = np.abs(evaluator.tile(*[evaluator.prepare(X)] * 2) - kernel(X, X, np.longdouble)).max()
    assert off <= evaluator.entry_error * float(np.finfo(DTYPE[precision]).eps) * kernel.scale(X, X)


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("profile", KINDS, ids=lambda profile: profile.name.lower())
def test_row_errors_bound_entries_of_inputs_far_out(
    rng: np.random.Generator, profile: Profile, precision: str, expanded: bool
) -> None:
    """Two clusters far from each other, near pairs in either: the inputs' own rounding, and that of their norms."""
    eps, d = float(np.finfo(DTYPE[precision]).eps), 8
    for far in (1.0, 30.0, 0.03 / math.sqrt(eps)):
        centres = far * np.sign(rng.standard_normal((2, d)))
        X = centres[rng.integers(0, 2, 80)] + 0.3 * rng.standard_normal((80, d))
        kernel = leaf_kernel(profile, d, scale=rng.uniform(0.3, 1.1, d), amplitude=1.5)
        evaluator = TileEvaluator(kernel, precision, expanded=expanded)
        off = np.abs(evaluator.tile(*[evaluator.prepare(X)] * 2) - kernel(X, X, np.longdouble))
        errors = evaluator.row_errors(X)
        if profile != POLYNOMIAL:  # its scale is each pair's own
            assert (off <= eps * 1.5 * (errors[:, None] + errors)).all()
        assert (errors >= 0.5 * evaluator.entry_error).all()
        # The expanded form is off by a share of the norms' squares, times the slope at zero: 7 and 10 of two profiles.
        slope = max(1.0, profile.slope_at_zero(1.3)) if profile.slope_at_zero is not None else 1.0
        assert errors.max() <= 60.0 * (1.0 + far + (slope * far * far if expanded else 0.0)) * d


def test_a_centre_is_taken_off_where_only_differences_matter(rng: np.random.Generator, precision: str) -> None:
    X, centre = 1e6 + rng.standard_normal((40, 3)), np.full(3, 1e6)
    kernel = parse_kernel("rbf + periodic", 3)
    one = TileEvaluator(kernel, precision, centre=centre)
    other = TileEvaluator(kernel, precision)
    near = other.tile(*[other.prepare(X - centre)] * 2)
    np.testing.assert_array_equal(one.tile(*[one.prepare(X)] * 2), near)
    assert one.row_errors(X).max() < 30.0 < 1e4 < other.row_errors(X).max()
    sent = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(sent.tile(*[sent.prepare(X)] * 2), near)
    # A dot product minds where its origin is.
    line = TileEvaluator(parse_kernel("linear", 3), "double", centre=centre)
    np.testing.assert_allclose(line.tile(*[line.prepare(X)] * 2), parse_kernel("linear", 3)(X, X), rtol=1e-12)
    with pytest.raises(InputError, match="a centre of 3 features"):
        TileEvaluator(kernel, precision, centre=[0.0])


def test_steep_profiles_keep_to_differences(rng: np.random.Generator, precision: str) -> None:
    X = rng.standard_normal((50, 40))
    for profile, differs in ((MATERN12, False), (MATERN32, True)):
        tiles = []
        for expanded in (False, True):
            evaluator = TileEvaluator(leaf_kernel(profile, 40), precision, expanded=expanded)
            tiles.append(evaluator.tile(*[evaluator.prepare(X)] * 2))
        assert np.array_equal(*tiles) != differs


def test_gentle_profiles_take_the_expanded_form_on_shorter_length_scales(rng: np.random.Generator) -> None:
    # What counts is how much of the entry a lost digit of the distance costs: a sixth of it for Matern 5/2.
    X = rng.standard_normal((50, 40))
    for profile, chosen in ((EXP2, False), (MATERN52, True)):
        tiles = {}
        for expanded in (None, False, True):
            evaluator = TileEvaluator(leaf_kernel(profile, 40, scale=(1.5,) * 40), "single", expanded=expanded)
            tiles[expanded] = evaluator.tile(*[evaluator.prepare(X)] * 2)
        np.testing.assert_array_equal(tiles[None], tiles[chosen])
        assert not np.array_equal(tiles[False], tiles[True])


def test_squared_exponentials_that_are_multiplied_are_one(rng: np.random.Generator, precision: str) -> None:
    groups = [InputGroup((0, 1), (0.7, 1.1)), InputGroup((2,), (0.9,), (1.5,)), InputGroup((1,), (0.3,))]
    steps = (Leaf(0, EXP2), Leaf(1, EXP2), Multiply(), Scale(0.5), Leaf(2, EXP2), Multiply())
    kernel = kernel_of(3, groups, *steps, amplitude=3.0)
    X = rng.standard_normal((90, 3))
    check(kernel, X, X[:20], precision, None)
    evaluator = TileEvaluator(kernel, precision)
    assert evaluator.stage_names == ("differences", "power_of_two")
    assert (evaluator.inputs, evaluator.amplitude) == (2 + 2 + 1, 1.5)


def test_periodic_inputs_far_from_the_origin(rng: np.random.Generator, precision: str) -> None:
    kernel = kernel_of(1, [InputGroup((0,), (1.2,), (0.5,))], Leaf(0, EXP2))
    X = rng.standard_normal((40, 1))
    evaluator = TileEvaluator(kernel, precision)
    # Whole periods away, exactly.
    near, far = evaluator.prepare(np.round(X * 64) / 64), evaluator.prepare(np.round(X * 64) / 64 + 2.0**30)
    np.testing.assert_array_equal(near.values, far.values)
    np.testing.assert_array_equal(evaluator.tile(near, far).diagonal(), np.ones(40))


def test_a_group_without_features_is_a_constant(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    for profile, value in ((EXP2, 1.0), (MATERN12, 1.0), (POLYNOMIAL, 0.7**3)):
        evaluator = TileEvaluator(leaf_kernel(profile, 0, scale=()), precision, expanded=expanded)
        A = evaluator.prepare(np.empty((20, 0)))
        np.testing.assert_allclose(evaluator.tile(A, A), np.full((20, 20), value), rtol=1e-6)
        np.testing.assert_allclose(evaluator.matmat(A, A, np.ones((20, 1))), 20.0 * value, rtol=1e-6)
    constant = TileEvaluator(kernel_of(3, [], Constant(2.0), Constant(0.5), Add(), amplitude=2.0), precision)
    B = constant.prepare(rng.standard_normal((20, 3)))
    np.testing.assert_array_equal(constant.tile(B, B), np.full((20, 20), 5.0))
    left, right = constant.pair(B, B, np.ones((20, 1)), np.ones((20, 2))[:, :1])
    np.testing.assert_array_equal(left, np.full((20, 1), 100.0))
    np.testing.assert_array_equal(right, left)


def test_forms_can_read_each_others_features(rng: np.random.Generator, precision: str) -> None:
    kernel = random_program(rng, 9, 4, 1.0)
    X = rng.standard_normal((50, 9))
    evaluators = [TileEvaluator(kernel, precision, expanded=expanded) for expanded in (False, True)]
    for one, other in (evaluators, evaluators[::-1]):
        own, others = one.prepare(X), other.prepare(X)
        np.testing.assert_array_equal(one.tile(own, own), one.tile(others, others))


def test_features_of_another_kernel_or_precision_are_refused(rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(leaf_kernel(MATERN32, 3), "single")
    own = evaluator.prepare(np.zeros((4, 3)))
    narrow = TileEvaluator(leaf_kernel(MATERN32, 2), "single").prepare(np.zeros((4, 2)))
    double = TileEvaluator(leaf_kernel(MATERN32, 3), "double").prepare(np.zeros((4, 3)))
    for other, found in ((narrow, "2 in float32"), (double, "3 in float64")):
        for call in (
            lambda a, b: evaluator.tile(a, b),
            lambda a, b: evaluator.matmat(a, b, np.ones((4, 1))),
            lambda a, b: evaluator.pair(a, b, np.ones((4, 1)), np.ones((4, 1))),
        ):
            with pytest.raises(InputError, match=f"expected features of 3 inputs in float32.*got {found}"):
                call(own, other)
            with pytest.raises(InputError, match=f"got {found}"):
                call(other, own)


def test_an_evaluator_can_be_sent(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    evaluator = TileEvaluator(random_program(rng, 9, 4, 1.0), precision, expanded=expanded)
    A = evaluator.prepare(rng.standard_normal((50, 9)))
    expected = evaluator.tile(A, A)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(evaluator)).tile(A, A), expected)


PLAIN, DOTS = InputGroup((0,), (1.0,)), InputGroup((0,), (1.0,), product=True)


@pytest.mark.parametrize(
    ("groups", "steps", "message"),
    [
        ([PLAIN], (), "must leave one tile on the stack; this one leaves 0"),
        ([PLAIN], (Leaf(0, EXP2), Leaf(0, EXP2)), "leaves 2"),
        ([PLAIN], (Leaf(0, EXP2), Add()), r"Add\(\) needs 2 tiles on the stack; there are 1"),
        ([PLAIN], (Scale(2.0),), "needs 1 tiles on the stack; there are 0"),
        ([PLAIN], (Leaf(1, EXP2),), "a leaf reads group 1 of a tile program that has 1"),
        ([PLAIN], (Leaf(0, RATIONAL_QUADRATIC),), r"rational_quadratic takes 1 parameters; got \(\)"),
        ([PLAIN], (Leaf(0, POLYNOMIAL, (2.0, 1.0)),), "polynomial was given a group with product=False"),
        ([DOTS], (Leaf(0, EXP2),), "power_of_two was given a group with product=True"),
        ([PLAIN], (Leaf(0, USER),), "user needs a function; got None"),
        ([InputGroup((2,), (1.0,))], (Leaf(0, EXP2),), r"group 0 .* reads features \(2,\) of 2"),
        ([InputGroup((0, 1), (1.0,))], (Leaf(0, EXP2),), "group 0 .* needs a scale"),
        ([InputGroup((0,), (0.0,))], (Leaf(0, EXP2),), "must be finite and positive"),
        ([InputGroup((0,), (1.0,), (math.inf,))], (Leaf(0, EXP2),), "must be finite and positive"),
    ],
)
def test_malformed_programs_are_refused(groups, steps, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TileEvaluator(kernel_of(2, groups, *steps))


# What profiles declare of themselves, against differences of their values and the entries that tiles have.


PARAMETERS = {RATIONAL_QUADRATIC: (0.3, 2.0, 40.0), STABLE: (0.4, 1.0, 1.3, 2.0)}


def cases() -> list[tuple[Profile, float]]:
    return [(profile, p) for profile in RADIAL for p in PARAMETERS.get(profile, (0.0,))]


def named(value: object) -> str | None:
    return value.name if isinstance(value, Profile) else None


@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_slopes_are_the_greatest_beyond_a_distance(profile: Profile, parameter: float) -> None:
    assert profile.value is not None
    r, step = np.geomspace(1e-3, 30.0, 4000), 1e-6
    above, below = ([profile.value((x + h * x) ** 2, parameter) for x in r] for h in (step, -step))
    slope = (np.array(below) - np.array(above)) / (2.0 * step * r)
    assert (slope >= -1e-8).all()
    for index in range(0, 4000, 250):
        assert profile.steepest(r[index], parameter) == pytest.approx(slope[index:].max(), rel=1e-4, abs=1e-6)
        assert profile.bulge(r[index], parameter) == pytest.approx((0.5 * r * slope)[index:].max(), rel=1e-4, abs=1e-6)
    if profile.slope_at_zero is not None:
        assert profile.slope_at_zero(parameter) == pytest.approx(
            (1.0 - profile.value(1e-10, parameter)) / 1e-10, rel=2e-4
        )


@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_values_are_the_tiles(profile: Profile, parameter: float) -> None:
    assert profile.value is not None
    evaluator = TileEvaluator(
        leaf_kernel(profile, 1, (parameter,) if profile.parameters else (), scale=(1.0,)), "double"
    )
    r = np.linspace(0.0, 6.0, 100)
    tile = evaluator.tile(evaluator.prepare(r[:, None]), evaluator.prepare(np.zeros((1, 1))))[:, 0]
    for x, entry in zip(r, tile, strict=True):
        value = profile.value(x * x, parameter)
        assert abs(entry - value) <= 2.0**-52 * (profile.rounding + 12.0)


def test_a_profile_is_one_object_in_a_process() -> None:
    assert {profile.name for profile in RADIAL} <= set(PROFILES)
    for profile in PROFILES.values():
        assert pickle.loads(pickle.dumps(profile)) is profile


def test_a_kernel_is_encoded_once() -> None:
    one, other = (TileEvaluator(leaf_kernel(RADIAL[1], 3), "single") for _ in range(2))
    assert one.program is other.program
    assert one.program is not TileEvaluator(leaf_kernel(RADIAL[1], 3), "double").program
    assert one.program is not TileEvaluator(leaf_kernel(RADIAL[2], 3), "single").program
