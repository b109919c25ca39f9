"""Derivatives of a kernel in its first input: sums over columns of them, and bounds on their sizes and roundings.

A kernel's program (`dkgp.kernels.program`) is read as an expression: leaves are functions of s = sum_q w_q (z_q -
z'_q)^2, or of t = sum_q w_q z_q z'_q, of coordinates z: the inputs themselves, unscaled, and the cosine and sine of
periodic ones. Differences of inputs are so exact but for one rounding, wherever the inputs lie.

The proofs about these sums are in docs/proofs.md ("Gradients"): every node of the expression has

    |k(x, x')| <= A(x) A(x'),    |dk(x, x') / dx_l| <= T_l(x) A(x'),    A(x)^2 = k(x, x),

with T_l the greatest sum of the absolute values of the derivative's terms. A computed value has an error of at most
u A(x) A(x') (e(x) + e(x')), a derivative one of u T_l(x) A(x') (e(x) + e(x')).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel
from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Scale, TileProgram
from dkgp.kernels.tiles import slope_loops as loops
from dkgp.kernels.tiles.encoding import require_digits
from dkgp.kernels.tiles.evaluator import count_entries
from dkgp.kernels.tiles.features import cosine_and_sine
from dkgp.kernels.tiles.processor import require_fused_multiply_add
from dkgp.kernels.tiles.stages import PARAMETERS, slope_stage, stage_address
from dkgp.kernels.tiles.user_functions import user_stage
from dkgp.kernels.user import USER, USER_PAIR

# Exponents of two are held above it: beside values of one, the effect is below any rounding.
FLOOR = -960.0
# Roundings of a leaf's value or slope that are not counted input by input: docs/proofs.md.
LEAF_ROUNDINGS = 64.0
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class SlopeSizes:
    """Bounds at rows x, for a kernel or a node of its expression; see the module.

    Attributes
    ----------
    scale : (r,) float64
        A, the root of k(x, x).
    slope : (r, d) float64
        G, the root of d^2 k(x, x') / dx_l dx'_l at x' = x: the norm of the derivative at x among functions of the
        kernel's space, so that |f'(x)| <= G |f|.
    terms : (r, d) float64
        T, nowhere below G.
    along : (r, d) float64
        dk(x, x') / dx_l at x' = x; half the derivative of k(x, x). Not a bound.
    errors : (r,) float64
        e, in units of u = eps / 2.
    """

    scale: FloatArray
    slope: FloatArray
    terms: FloatArray
    along: FloatArray
    errors: FloatArray


class SlopeEvaluator:
    """Sums of a kernel's derivatives in the inputs of its first argument, in float64.

    Parameters
    ----------
    kernel : Kernel
        Without white noise.

    Raises
    ------
    InputError
        A kernel without a derivative, or without a declared one; the message names it and an alternative.

    Attributes
    ----------
    leaves : int
        Number of leaves of the kernel's expression; a sum over n columns has n times as many terms.
    """

    def __init__(self, kernel: Kernel) -> None:
        require_fused_multiply_add()
        require_digits(kernel)
        self.kernel = kernel
        self._program = kernel.tile_program()
        self._slopes = {leaf: _slope_at_zero(leaf) for leaf in self._program.steps if isinstance(leaf, Leaf)}
        self.leaves = sum(isinstance(step, Leaf) for step in self._program.steps)
        self._coordinates = _Coordinates(self._program)
        self._steps, self._places, self._scales = _table(self._program, self._coordinates)

    def coordinates(self, X: ArrayLike) -> FloatArray:
        """The coordinates of rows (r, d) that derivatives are made of: (q, r), contiguous."""
        return self._coordinates.of(self.kernel.one_side(X))

    def sums(self, X: ArrayLike, columns: FloatArray, weights: FloatArray) -> FloatArray:
        """sum_j weights_jt dk(x_i, z_j) / dx_il for rows x and columns z: (r, t, d).

        Parameters
        ----------
        X : (r, d) array_like
        columns : (q, n) float64
            From `coordinates`.
        weights : (n, t) float64
        """
        rows = self.kernel.one_side(X)
        points = self._coordinates.of(rows)
        if columns.shape[0] != points.shape[0] or weights.shape[0] != columns.shape[1]:
            raise InputError(
                f"expected columns ({points.shape[0]}, n) from `coordinates` and weights (n, t); got {columns.shape} "
                f"and {weights.shape}"
            )
        out = np.zeros((len(rows), weights.shape[1], points.shape[0]))
        count_entries(len(rows) * columns.shape[1])
        loops.add_slopes(
            np.ascontiguousarray(points.T),
            np.ascontiguousarray(columns),
            np.ascontiguousarray(weights.T * self._program.amplitude),
            self._steps,
            self._places,
            self._scales,
            out,
        )
        return self._coordinates.pulled_back(out, points, rows.shape[1])

    @np.errstate(over="ignore", invalid="ignore")  # a NaN bounds nothing
    def sizes(self, X: ArrayLike) -> SlopeSizes:
        """Bounds on sizes and roundings at rows (r, d), and their own roundings on top."""
        rows = self.kernel.one_side(X)
        stack: list[SlopeSizes] = []
        roundings = 16.0
        for step in self._program.steps:
            if isinstance(step, Leaf):
                group = self._program.groups[step.group]
                leaf = _product_leaf if group.product else _distance_leaf
                stack.append(leaf(step, group, rows, self._slopes[step]))
                degree = step.parameter if group.product else 1.0
                roundings += 2.0 * degree * (len(group.features) + 8.0)
            elif isinstance(step, Constant):
                stack.append(_constant(float(step.value), rows))
            elif isinstance(step, Scale):
                stack.append(_scaled(stack.pop(), float(step.factor)))
            else:
                second, first = stack.pop(), stack.pop()
                stack.append((_sum if isinstance(step, Add) else _product)(first, second))
            roundings += 8.0
        top = _scaled(stack.pop(), self._program.amplitude)
        # Sums, products and roots of numbers that are not negative.
        above = 1.0 + roundings * _EPS
        return SlopeSizes(top.scale * above, top.slope * above, top.terms * above, top.along, top.errors * above)


# ---------------------------------------------------------------------------------------------------------- coordinates


class _Coordinates:
    """The coordinates of a program: features as they are, and circles of periodic ones, each once."""

    def __init__(self, program: TileProgram) -> None:
        self._plain: list[int] = []
        self._circles: list[tuple[int, float]] = []
        for group in program.groups:
            for number, feature in enumerate(group.features):
                if group.periods is None:
                    if feature not in self._plain:
                        self._plain.append(feature)
                elif (feature, group.periods[number]) not in self._circles:
                    self._circles.append((feature, group.periods[number]))

    def places(self, group: InputGroup) -> list[tuple[int, float]]:
        """The coordinates that a group reads, each with its w."""
        places = []
        for number, (feature, scale) in enumerate(zip(group.features, group.scale, strict=True)):
            if group.periods is None:
                places.append((self._plain.index(feature), scale * scale))
            else:
                circle = len(self._plain) + 2 * self._circles.index((feature, group.periods[number]))
                places += [(circle, scale * scale), (circle + 1, scale * scale)]
        return places

    def of(self, rows: FloatArray) -> FloatArray:
        """Coordinates of rows (r, d): (q, r)."""
        values = np.empty((len(self._plain) + 2 * len(self._circles), len(rows)))
        values[: len(self._plain)] = rows[:, self._plain].T
        for place, (feature, period) in enumerate(self._circles):
            at = len(self._plain) + 2 * place
            values[at], values[at + 1] = cosine_and_sine(rows[:, feature] / period)
        return values

    def pulled_back(self, slopes: FloatArray, points: FloatArray, d: int) -> FloatArray:
        """Derivatives in inputs (r, t, d) from those in coordinates (r, t, q) at points (q, r), by the chain rule."""
        result = np.zeros((*slopes.shape[:2], d))
        for place, feature in enumerate(self._plain):
            result[:, :, feature] += slopes[:, :, place]
        for place, (feature, period) in enumerate(self._circles):
            at = len(self._plain) + 2 * place
            cosine, sine = points[at][:, None], points[at + 1][:, None]
            turning = cosine * slopes[:, :, at + 1] - sine * slopes[:, :, at]
            result[:, :, feature] += 2.0 * math.pi / period * turning
        return result


def _table(program: TileProgram, coordinates: _Coordinates) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
    """Steps, places and scales for the compiled loop; compiles the stages that are new."""
    table = np.zeros((len(program.steps), loops.STEP_WIDTH), np.int64)
    stack: list[int] = []
    places: list[tuple[int, float]] = []
    for number, (row, step) in enumerate(zip(table, program.steps, strict=True)):
        numbers = row[loops.NUMBERS :].view(np.float64)
        if isinstance(step, Leaf):
            group = program.groups[step.group]
            read = coordinates.places(group)
            kind = loops.DOT_PRODUCT if group.product else loops.DISTANCE
            row[[loops.KIND, loops.FIRST, loops.COUNT]] = kind, len(places), len(read)
            row[[loops.VALUES, loops.SLOPES]] = _stages(step)
            floor = FLOOR if step.function is None else -np.inf  # of a user's function there is none
            numbers[:] = (*(*step.parameters, 0.0, 0.0)[: PARAMETERS - 1], floor)
            places += read
        elif isinstance(step, Constant | Scale):
            row[loops.KIND] = loops.CONSTANT if isinstance(step, Constant) else loops.SCALE
            numbers[0] = step.value if isinstance(step, Constant) else step.factor
            row[loops.LEFT] = -1 if isinstance(step, Constant) else stack.pop()
        else:
            row[loops.KIND] = loops.ADD if isinstance(step, Add) else loops.MULTIPLY
            row[loops.RIGHT], row[loops.LEFT] = stack.pop(), stack.pop()
        stack.append(number)
    return table, np.array([place for place, _ in places], np.int64), np.array([scale for _, scale in places])


def _stages(leaf: Leaf) -> tuple[int, int]:
    """Addresses of the stages of a leaf's values and slopes."""
    if leaf.function is None:
        return stage_address(leaf.profile.name, np.float64), stage_address(slope_stage(leaf.profile), np.float64)
    assert leaf.derivative is not None
    return user_stage(leaf.function, np.float64, pair=False), user_stage(leaf.derivative, np.float64, pair=False)


def _slope_at_zero(leaf: Leaf) -> float:
    """|dk/ds| at s = 0, of a dot product 0; `InputError` for a leaf without derivative."""
    profile = leaf.profile
    if profile is USER_PAIR:
        raise InputError(
            "a kernel function of two rows has no derivative in its inputs that could be declared; write it as a "
            "function of the squared distance, with its `derivative`, for gradients"
        )
    if profile is USER:
        if leaf.derivative is None:
            name = getattr(leaf.function, "__name__", leaf.function)
            raise InputError(
                f"the kernel function '{name}' has no `derivative`, which gradients are made of; give it, f'(s), to "
                "UserKernel or to register_function"
            )
        slope = -float(leaf.derivative(0.0))
        if not (math.isfinite(slope) and slope >= 0.0):
            raise InputError(
                f"the derivative of a kernel function is {-slope} at s = 0; expected a finite number, not above zero, "
                "as that of a function that is differentiable and falls"
            )
        return slope
    if profile.slopes is None or (profile.reads == "distance" and not math.isfinite(leaf.slope_at_zero)):
        raise InputError(
            f"the kernel '{profile.name}' has no gradient in its inputs: it is not differentiable where two of them "
            "meet, or its profile declares no `slopes`. Take matern32, matern52, rbf, rq, cubic or wendland instead"
        )
    return leaf.slope_at_zero if profile.reads == "distance" else 0.0


# --------------------------------------------------------------------------------------------------------------- bounds


def _distance_leaf(leaf: Leaf, group: InputGroup, rows: FloatArray, steepest: float) -> SlopeSizes:
    """Sizes of f(s): G_l^2 = 2 w_l |f'(0)|, and 2 w_l |f'(0)| (2 pi / period)^2 of a periodic feature."""
    slope, terms = np.zeros_like(rows), np.zeros_like(rows)
    at_zero = 1.0 if leaf.function is None else float(leaf.function(0.0))
    count = len(group.features) * (1 if group.periods is None else 2)
    errors = np.full(len(rows), 0.5 * (count + LEAF_ROUNDINGS))
    for number, (feature, scale) in enumerate(zip(group.features, group.scale, strict=True)):
        steep = scale * math.sqrt(2.0 * steepest)
        if group.periods is None:
            slope[:, feature] = terms[:, feature] = steep
        else:
            period = group.periods[number]
            slope[:, feature] = 2.0 * math.pi / period * steep
            terms[:, feature] = 2.0 * slope[:, feature]  # of cosine and sine
            turns = np.abs(rows[:, feature] / period)
            errors += 6.0 * math.sqrt(steepest) * scale * (4.0 * math.pi * turns + 20.0)
    scale_of_rows = np.full(len(rows), math.sqrt(at_zero))
    return SlopeSizes(scale_of_rows, slope, terms, np.zeros_like(rows), errors)


def _product_leaf(leaf: Leaf, group: InputGroup, rows: FloatArray, steepest: float) -> SlopeSizes:
    """Sizes of (t + c)^p: G_l^2 = p (t + c)^(p-1) w_l + p (p - 1) (t + c)^(p-2) w_l^2 x_l^2, t = sum_l w_l x_l^2."""
    degree, offset = leaf.parameters
    weights = np.zeros(rows.shape[1])
    weights[list(group.features)] = np.asarray(group.scale) ** 2
    base = (rows * rows) @ weights + offset
    first = degree * base ** (degree - 1.0)
    square = first[:, None] * weights
    if degree > 1.0:
        square = square + degree * (degree - 1.0) * (base ** (degree - 2.0))[:, None] * (weights * rows) ** 2
    terms = degree * np.sqrt(base ** (degree - 1.0))[:, None] * np.sqrt(weights)
    errors = np.full(len(rows), 0.5 * (degree * (len(group.features) + 8.0) + LEAF_ROUNDINGS))
    return SlopeSizes(base ** (degree / 2.0), np.sqrt(square), terms, first[:, None] * weights * rows, errors)


def _constant(value: float, rows: FloatArray) -> SlopeSizes:
    none = np.zeros_like(rows)
    return SlopeSizes(np.full(len(rows), math.sqrt(value)), none, none, none, np.full(len(rows), 1.0))


def _scaled(node: SlopeSizes, factor: float) -> SlopeSizes:
    root = math.sqrt(factor)
    return SlopeSizes(root * node.scale, root * node.slope, root * node.terms, factor * node.along, node.errors + 1.0)


def _sum(a: SlopeSizes, b: SlopeSizes) -> SlopeSizes:
    """By Cauchy's inequality A_a A_a' + A_b A_b' <= A A', A^2 = A_a^2 + A_b^2."""
    return SlopeSizes(
        np.hypot(a.scale, b.scale),
        np.hypot(a.slope, b.slope),
        np.hypot(a.terms, b.terms),
        a.along + b.along,
        np.maximum(a.errors, b.errors) + 1.0,
    )


def _product(a: SlopeSizes, b: SlopeSizes) -> SlopeSizes:
    """The product rule, of the derivative in either argument and in both."""
    scale_a, scale_b = a.scale[:, None], b.scale[:, None]
    square = (a.slope * scale_b) ** 2 + (b.slope * scale_a) ** 2 + 2.0 * a.along * b.along
    return SlopeSizes(
        a.scale * b.scale,
        np.sqrt(np.maximum(square, 0.0)),
        a.terms * scale_b + b.terms * scale_a,
        a.along * scale_b**2 + b.along * scale_a**2,
        a.errors + b.errors + 2.0,
    )
