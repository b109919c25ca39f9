"""Encoding of a kernel's tile program: the table of stages that the compiled loops run.

The steps become an expression first. Constants are folded into the terms that they multiply, so a sum of two scaled
kernels costs one pass over the tile beside its two profiles, and factors of the whole kernel cost nothing. A product of
squared exponentials, periodic ones among them, is one squared exponential of all their inputs. The larger operand of a
sum or product comes first, which keeps the stack of tiles short.

Kernels whose products float64 loses on the way are refused by name, since no bound knows of underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel
from dkgp.kernels.composite import Product
from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Multiply, Scale, TileProgram
from dkgp.kernels.tiles.loops import PROGRAM_WIDTH
from dkgp.kernels.tiles.stages import PARAMETERS, stage_address
from dkgp.kernels.tiles.user_functions import user_stage
from dkgp.kernels.user import UserKernel
from dkgp.kernels.wrapped import Scaled

# From this many inputs on single precision takes 2ab - (|a|^2 + |b|^2), half the arithmetic of differences: it shows
# where a processor adds with its multipliers, and costs nothing where it does not. The form loses |x|^2 times the
# precision's epsilon. Standardised inputs have an expected |x|^2 of sum(scale^2); where that is larger (many short
# length scales) single precision keeps to differences, and double precision, in which things are proven, always does.
EXPANDED_FROM_INPUTS = 10
EXPANDED_UP_TO_SQUARED_NORM = 64.0
# The smallest exponent of two, shared by all exponentials that are multiplied with each other, and the largest floor
# that one of them may get: beside values of one, 2**-24 is a rounding of float32.
LOWEST_EXPONENT = {4: -96.0, 8: -960.0}
HIGHEST_FLOOR = -24.0
# Roundings of every squared distance or dot product that are not counted input by input, such as those of scales.
SCALE_ROUNDINGS = 12
# Entries of a smaller kernel may be no numbers of sixteen digits any more.
LEAST_PRODUCT = 1e-280


@dataclass(frozen=True)
class Group:
    """Inputs of one leaf, as the loops lay them out: those of its parts one below the other."""

    parts: tuple[InputGroup, ...]  # several where squared exponentials were multiplied
    expanded: bool = False  # squared distances are |a|^2 + |b|^2 - 2ab
    centred: bool = False  # only differences of inputs matter, so that a common centre may be taken off first

    @property
    def product(self) -> bool:
        """True if the leaf reads dot products."""
        return self.parts[0].product

    @property
    def inputs(self) -> int:
        """Rows of features: one for each feature, two for a periodic one."""
        return sum(len(part.features) * (1 if part.periods is None else 2) for part in self.parts)

    @property
    def squared_norm(self) -> float:
        """Expected squared norm of standardised inputs; a periodic feature's is its scale's square exactly."""
        with np.errstate(over="ignore"):
            return float(sum(np.sum(np.asarray(part.scale) ** 2) for part in self.parts))


@dataclass(frozen=True)
class Sensitivity:
    """The effect that errors of a leaf's inputs have on its values."""

    group: Group
    slope: float  # the greatest |dk/dr|, r the scaled distance
    bend: float  # the greatest |dk/d r^2| where r^2 comes from the expanded form; zero elsewhere


@dataclass(frozen=True)
class EncodedProgram:
    """A kernel's program as a `TileEvaluator` runs it."""

    dtype: np.dtype[Any]  # of the tiles
    groups: tuple[Group, ...]  # their rows of features follow each other in this order
    amplitude: float  # factor on the tiles that the loops leave
    depth: int  # tiles on the stack
    entry_error: float  # see `TileEvaluator.entry_error`
    sensitivities: tuple[Sensitivity, ...]  # of the leaves; see `TileEvaluator.row_errors`
    stages: tuple[_Stage, ...]

    @property
    def inputs(self) -> int:
        """Rows of features of all groups."""
        return sum(group.inputs for group in self.groups)

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """Program for the compiled loops (see `dkgp.kernels.tiles.loops`); compiles the stages that are new."""
        table = np.zeros((1 + len(self.groups) + len(self.stages), PROGRAM_WIDTH), np.int64)
        table[0, :2] = len(self.groups), self.depth
        feature = norm = packed = 0
        for row, group in zip(table[1:], self.groups, strict=False):
            width = group.inputs + group.expanded
            row[:5] = feature, group.inputs, norm if group.expanded else -1, packed, width
            feature, norm, packed = feature + group.inputs, norm + (not group.product), packed + width
        for row, stage in zip(table[1 + len(self.groups) :], self.stages, strict=True):
            row[:3] = stage.address(self.dtype), stage.slot, stage.group
            row[3 : 3 + len(stage.parameters)].view(np.float64)[:] = stage.parameters
        return table


@dataclass(frozen=True)
class _Stage:
    name: str | Callable[..., Any]
    slot: int
    group: int = -1
    parameters: tuple[float, ...] = ()

    def address(self, dtype: np.dtype[Any]) -> int:
        if isinstance(self.name, str):
            return stage_address(self.name, dtype)
        return user_stage(self.name, dtype, pair=self.group >= 0)


@dataclass(frozen=True)
class _Tree:
    """An expression: a leaf; an operand times a factor plus an offset; or two operands' sum or product."""

    kind: Literal["leaf", "shift", "add", "multiply"]
    leaf: Leaf | None = None
    parts: tuple[InputGroup, ...] = ()
    operands: tuple[_Tree, ...] = ()
    numbers: tuple[float, ...] = ()

    @property
    def depth(self) -> int:
        if len(self.operands) == 2:
            return max(self.operands[0].depth, self.operands[1].depth + 1)
        return self.operands[0].depth if self.operands else 1

    @property
    def exponentials(self) -> int:
        """The most exponentials that are multiplied with each other."""
        if self.kind == "leaf":
            return int(self.leaf is not None and self.leaf.profile.value is not None)
        counts = [operand.exponentials for operand in self.operands]
        return sum(counts) if self.kind == "multiply" else max(counts)


@dataclass(frozen=True)
class _Term:
    """A factor times an expression; a constant where there is none."""

    factor: float
    tree: _Tree | None = None


def encoded(kernel: Kernel, dtype: np.dtype[Any], expanded: bool | None) -> EncodedProgram:
    """Encode a kernel, once in a process as a rule: all tasks of a solve need the same few."""
    program = _encoded(kernel, dtype, expanded)
    # A new table where a user's function is in it: the globals that it reads, and so its stage, may have changed.
    return program if all(isinstance(stage.name, str) for stage in program.stages) else replace(program)


@lru_cache(maxsize=512)
def _encoded(kernel: Kernel, dtype: np.dtype[Any], expanded: bool | None) -> EncodedProgram:
    require_digits(kernel)
    return encode(kernel.tile_program(), dtype, expanded, kernel.n_features)


def encode(program: TileProgram, dtype: np.dtype[Any], expanded: bool | None, n_features: int) -> EncodedProgram:
    """Check a program, `InputError` where it is malformed, and arrange its stages for tiles of float32 or float64."""
    term = _expression(program, n_features)
    amplitude = float(program.amplitude) * term.factor
    if term.tree is None:
        return EncodedProgram(dtype, (), amplitude, 1, 2.0, (), (_Stage("constant", 0, parameters=(1.0,)),))
    emission = _Emission(dtype.itemsize, expanded)
    error = emission.emit(term.tree, 0, term.tree.exponentials)
    # The amplitude and its rounding; and each step may have rounded a constant that was folded into another.
    return EncodedProgram(
        dtype,
        tuple(emission.groups),
        amplitude,
        term.tree.depth,
        error + 1.0 + len(program.steps),
        tuple(emission.sensitivities),
        tuple(emission.stages),
    )


def _expression(program: TileProgram, n_features: int) -> _Term:
    """Fold the steps into one expression with all constants drawn together."""
    for number, group in enumerate(program.groups):
        _check_group(number, group, n_features)
    stack: list[_Term] = []
    for step in program.steps:
        needed = 2 if isinstance(step, Add | Multiply) else 1 if isinstance(step, Scale) else 0
        if len(stack) < needed:
            raise InputError(f"a tile program's {step!r} needs {needed} tiles on the stack; there are {len(stack)}")
        if isinstance(step, Leaf):
            stack.append(_Term(1.0, _Tree("leaf", step, _parts_of(step, program.groups))))
        elif isinstance(step, Constant):
            stack.append(_Term(float(step.value)))
        elif isinstance(step, Scale):
            top = stack.pop()
            stack.append(replace(top, factor=top.factor * float(step.factor)))
        else:
            second, first = stack.pop(), stack.pop()
            stack.append(_multiplied(first, second) if isinstance(step, Multiply) else _added(first, second))
    if len(stack) != 1:
        raise InputError(f"a tile program must leave one tile on the stack; this one leaves {len(stack)}")
    return stack[0]


def _added(first: _Term, second: _Term) -> _Term:
    if first.tree is None:
        first, second = second, first
    if first.tree is None:
        return _Term(first.factor + second.factor)
    if second.tree is None:
        return _Term(1.0, _Tree("shift", operands=(first.tree,), numbers=(first.factor, second.factor)))
    if second.tree.depth > first.tree.depth:
        first, second = second, first
    assert first.tree is not None
    assert second.tree is not None
    return _Term(1.0, _Tree("add", operands=(first.tree, second.tree), numbers=(first.factor, second.factor)))


def _multiplied(first: _Term, second: _Term) -> _Term:
    factor = first.factor * second.factor
    if first.tree is None or second.tree is None:
        return _Term(factor, first.tree or second.tree)
    left, right = first.tree, second.tree
    if left.leaf and right.leaf and left.leaf.profile == right.leaf.profile and left.leaf.profile.multiplies:
        return _Term(factor, replace(left, parts=left.parts + right.parts))
    if right.depth > left.depth:
        left, right = right, left
    return _Term(factor, _Tree("multiply", operands=(left, right)))


class _Emission:
    """Stages in the order in which they run, and the groups that they read."""

    def __init__(self, itemsize: int, expanded: bool | None) -> None:
        self.itemsize, self.expanded = itemsize, expanded
        self.groups: list[Group] = []
        self.sensitivities: list[Sensitivity] = []
        self.stages: list[_Stage] = []

    def emit(self, tree: _Tree, slot: int, exponentials: int) -> float:
        """Leave the expression in tile `slot`; return the bound on an entry's error."""
        if tree.kind == "leaf":
            return self._emit_leaf(tree, slot, exponentials)
        errors = [self.emit(operand, slot + place, exponentials) for place, operand in enumerate(tree.operands)]
        self.stages.append(_Stage(tree.kind, slot, parameters=tree.numbers))
        # Of a sum: two products, the addition, and constants that are ratios of constants.
        return sum(errors) + 1.0 if tree.kind == "multiply" else max(errors) + 3.0

    def _emit_leaf(self, tree: _Tree, slot: int, exponentials: int) -> float:
        leaf = tree.leaf
        assert leaf is not None
        profile = leaf.profile
        group = Group(tree.parts, centred=profile.reads == "distance")
        group = replace(group, expanded=self._is_expanded(leaf, group))
        if group.centred:
            bend = leaf.slope_at_zero if group.expanded else 0.0
            self.sensitivities.append(Sensitivity(group, float(profile.steepest(0.0, leaf.parameter)), bend))
        # Equal inputs are held once.
        if group in self.groups:
            number = self.groups.index(group)
        else:
            number = len(self.groups)
            self.groups.append(group)
        form = "products" if group.product else "expanded" if group.expanded else "differences"
        floor = 0.0
        if profile.reads == "rows":
            assert leaf.function is not None
            self.stages.append(_Stage(leaf.function, slot, number))
        elif profile.entries is None:
            assert leaf.function is not None
            self.stages += [_Stage(form, slot, number), _Stage(leaf.function, slot)]
        else:
            floor = min(LOWEST_EXPONENT[self.itemsize] / max(exponentials, 1), HIGHEST_FLOOR)
            numbers = (*leaf.parameters, 0.0, 0.0)[: PARAMETERS - 1]
            self.stages += [_Stage(form, slot, number), _Stage(profile.name, slot, parameters=(*numbers, floor))]
        return self._leaf_error(leaf, group, 2.0**floor if profile.value is not None else 0.0)

    def _is_expanded(self, leaf: Leaf, group: Group) -> bool:
        slope = leaf.slope_at_zero
        if not group.centred or not group.inputs or not math.isfinite(slope):
            return False
        if self.expanded is not None:
            return self.expanded
        # A squared exponential's slope at zero is ln 2.
        squared_norm = group.squared_norm * (slope / math.log(2.0))
        few_digits_lost = group.inputs >= EXPANDED_FROM_INPUTS and squared_norm <= EXPANDED_UP_TO_SQUARED_NORM
        return self.itemsize == 4 and few_digits_lost

    def _leaf_error(self, leaf: Leaf, group: Group, floored: float) -> float:
        """Bound on a leaf's error in units of the precision's epsilon, two roundings; `row_errors` go on top."""
        relative = group.inputs + SCALE_ROUNDINGS
        roundings = float(leaf.profile.bulge(0.0, leaf.parameter)) * relative + leaf.profile.rounding
        return 0.5 * roundings + floored / (2.0**-23 if self.itemsize == 4 else 2.0**-52)


def _parts_of(leaf: Leaf, groups: tuple[InputGroup, ...]) -> tuple[InputGroup, ...]:
    """The leaf's inputs, once the leaf is known to be sound."""
    if not 0 <= leaf.group < len(groups):
        raise InputError(f"a leaf reads group {leaf.group} of a tile program that has {len(groups)}")
    profile = leaf.profile
    if len(leaf.parameters) != profile.parameters:
        raise InputError(f"{profile.name} takes {profile.parameters} parameters; got {leaf.parameters}")
    if profile.entries is None and not callable(leaf.function):
        raise InputError(f"{profile.name} needs a function; got {leaf.function!r}")
    if groups[leaf.group].product != (profile.reads == "product"):
        raise InputError(f"{profile.name} was given a group with product={groups[leaf.group].product}")
    return (groups[leaf.group],)


def _check_group(number: int, group: InputGroup, n_features: int) -> None:
    lengths = {len(group.features), len(group.scale), len(group.features if group.periods is None else group.periods)}
    if len(lengths) > 1:
        raise InputError(f"group {number} of a tile program needs a scale, and a period if any, for each feature")
    if any(not 0 <= feature < n_features for feature in group.features):
        raise InputError(f"group {number} of a tile program reads features {group.features} of {n_features}")
    if not all(math.isfinite(value) and value > 0.0 for value in (*group.scale, *(group.periods or ()))):
        raise InputError(f"scales and periods must be finite and positive; got {group.scale} and {group.periods}")


def require_digits(kernel: Kernel) -> None:
    """Refuse products and multiples, anywhere in a kernel, whose intermediate values may be too small for all digits.

    Magnitudes are k(x, x) at inputs of one standard deviation each; the error names them. Profiles, weights and
    amplitudes may be multiplied in any order: the least product of any order is that of the magnitudes below one.
    """
    for part in kernel.walk():
        if isinstance(part, Product):
            _require_product("the parts of a product", [_magnitude(factor) for factor in part.parts])
        elif isinstance(part, Scaled):
            _require_product("a kernel and its scale", [_magnitude(part.kernel), part.scale])


def _magnitude(kernel: Kernel) -> float:
    """k(x, x) at a row of ones; of a user's function of two rows, of unknown size there, its factor."""
    children = [_magnitude(child) for child in kernel.children]
    if isinstance(kernel, Product):
        return math.prod(children)
    if isinstance(kernel, Scaled):
        return kernel.scale * children[0]
    if children:
        return math.fsum(children)
    if isinstance(kernel, UserKernel) and not kernel.stationary:
        return kernel.variance
    return float(kernel.diagonal(np.ones((1, kernel.n_features)))[0])


def _require_product(factors: str, magnitudes: Sequence[float]) -> None:
    small = [magnitude for magnitude in magnitudes if magnitude < 1.0]
    if len(small) > 1 and math.prod(small) < LEAST_PRODUCT:
        listed = ", ".join(f"{magnitude:.3g}" for magnitude in magnitudes)
        raise InputError(
            f"{factors} have the magnitudes {listed} at inputs of one standard deviation; the product of those "
            f"below one is {math.prod(small):.3g}, and float64 is exact only above {LEAST_PRODUCT:g}. Choose other "
            "variances, scales or weights"
        )
