"""Tile programs as kernels, with an evaluation of their own: the steps as they are written down, in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.kernels.compact import CUBIC, SPHERICAL, WENDLAND
from dkgp.kernels.dot_product import POLYNOMIAL
from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Multiply, Profile, Scale, Step, TileProgram
from dkgp.kernels.stationary import EXP2, MATERN12, MATERN32, MATERN52, RATIONAL_QUADRATIC, STABLE
from dkgp.kernels.user import USER, USER_PAIR

COMPACT = (SPHERICAL, CUBIC, WENDLAND)
RADIAL = (EXP2, MATERN12, MATERN32, MATERN52, RATIONAL_QUADRATIC, STABLE, *COMPACT)


@dataclass(frozen=True)
class ProgramKernel:
    """The methods of a kernel that a `TileEvaluator` calls, for any program."""

    n_features: int
    program: TileProgram
    type_name: str = field(default="program", repr=False)

    def tile_program(self) -> TileProgram:
        return self.program

    def walk(self) -> Iterator[ProgramKernel]:
        """Itself alone: no product of kernels."""
        yield self

    def __call__(self, A: Any, B: Any, dtype: Any = np.float64) -> np.ndarray:
        """Evaluate all pairs, entry by entry where a function of two rows is to be called."""
        left, right = np.asarray(A, dtype), np.asarray(B, dtype)
        stack: list[np.ndarray] = []
        for step in self.program.steps:
            if isinstance(step, Leaf):
                group = self.program.groups[step.group]
                stack.append(evaluated(step, inputs_of(group, left), inputs_of(group, right)))
            elif isinstance(step, Constant):
                stack.append(np.full((len(left), len(right)), step.value, dtype))
            elif isinstance(step, Scale):
                stack.append(stack.pop() * step.factor)
            else:
                second, first = stack.pop(), stack.pop()
                stack.append(first + second if isinstance(step, Add) else first * second)
        (last,) = stack
        return self.program.amplitude * last

    def scale(self, A: Any, B: Any) -> float:
        """Largest value that the terms, taken by their absolute values, reach together."""
        stack: list[float] = []
        for step in self.program.steps:
            if isinstance(step, Leaf):
                group = self.program.groups[step.group]
                largest = 1.0
                if step.profile == POLYNOMIAL:
                    norms = [np.sqrt((inputs_of(group, X) ** 2).sum(axis=1)).max(initial=0.0) for X in (A, B)]
                    largest = (norms[0] * norms[1] + abs(step.parameters[1])) ** step.parameters[0]
                stack.append(largest)
            elif isinstance(step, Constant):
                stack.append(abs(step.value))
            elif isinstance(step, Scale):
                stack.append(stack.pop() * abs(step.factor))
            else:
                second, first = stack.pop(), stack.pop()
                stack.append(first + second if isinstance(step, Add) else first * second)
        return abs(self.program.amplitude) * stack[0]


def inputs_of(group: InputGroup, X: np.ndarray) -> np.ndarray:
    columns = X[:, list(group.features)]
    scale = np.asarray(group.scale, X.dtype)
    if group.periods is None:
        return columns * scale
    angle = 2.0 * np.pi * columns / np.asarray(group.periods)
    return np.concatenate([scale * np.cos(angle), scale * np.sin(angle)], axis=1)


def evaluated(leaf: Leaf, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if leaf.profile == USER_PAIR:
        return np.array([[leaf.function(x, y) for y in b] for x in a]).reshape(len(a), len(b))
    if leaf.profile == POLYNOMIAL:
        degree, offset = leaf.parameters
        return (a @ b.T + a.dtype.type(offset)) ** int(degree)
    s = np.zeros((len(a), len(b)), a.dtype)
    for column in range(a.shape[1]):
        s += (a[:, None, column] - b[None, :, column]) ** 2
    if leaf.profile == USER:
        return np.vectorize(leaf.function, otypes=[float])(s)
    log2 = np.log(a.dtype.type(2.0))
    if leaf.profile == RATIONAL_QUADRATIC:
        return np.exp(-a.dtype.type(leaf.parameters[0]) * np.log1p(s))
    if leaf.profile == STABLE:
        return np.exp(-(s ** a.dtype.type(0.5 * leaf.parameters[0])))
    if leaf.profile in COMPACT:
        u = np.minimum(np.sqrt(s), 1)
        return {
            SPHERICAL: 1 - 3 * u / 2 + u**3 / 2,
            CUBIC: 1 - 7 * u**2 + 35 * u**3 / 4 - 7 * u**5 / 2 + 3 * u**7 / 4,
            WENDLAND: 1 - 10 * u**2 + 20 * u**3 - 15 * u**4 + 4 * u**5,
        }[leaf.profile]
    v = np.sqrt(s) * log2
    return {
        EXP2: np.exp(-s * log2),
        MATERN12: np.exp(-v),
        MATERN32: (1 + v) * np.exp(-v),
        MATERN52: (1 + v + v * v / 3) * np.exp(-v),
    }[leaf.profile]


def leaf_kernel(
    profile: Profile, d: int, parameters: tuple[float, ...] = (), *, scale: Any = None, amplitude: float = 1.0
) -> ProgramKernel:
    """One leaf of all features."""
    if not parameters:
        parameters = {RATIONAL_QUADRATIC: (1.3,), STABLE: (1.4,), POLYNOMIAL: (3.0, 0.7)}.get(profile, ())
    scales = tuple(np.full(d, 1.0 / np.sqrt(d)) if scale is None else scale)
    group = InputGroup(tuple(range(d)), scales, product=profile == POLYNOMIAL)
    return ProgramKernel(d, TileProgram((group,), (Leaf(0, profile, parameters),), amplitude))


def kernel_of(n_features: int, groups: list[InputGroup], *steps: Step, amplitude: float = 1.0) -> ProgramKernel:
    return ProgramKernel(n_features, TileProgram(tuple(groups), steps, amplitude))


def random_program(rng: np.random.Generator, n_features: int, leaves: int, amplitude: float) -> ProgramKernel:
    """Sums and products of scaled leaves of every kind and of constants, bracketed at random."""
    groups: list[InputGroup] = []

    def leaf() -> list[Step]:
        if rng.random() < 0.1:
            return [Constant(float(rng.uniform(-2.0, 2.0)))]
        profile = (*RADIAL, POLYNOMIAL)[int(rng.integers(len(RADIAL) + 1))]
        features = tuple(int(f) for f in np.flatnonzero(rng.random(n_features) < 0.7))
        periodic = profile != POLYNOMIAL and rng.random() < 0.3
        scale = tuple(float(s) for s in rng.uniform(0.2, 1.2, len(features)) / np.sqrt(max(len(features), 1)))
        periods = tuple(float(p) for p in rng.uniform(0.5, 3.0, len(features))) if periodic else None
        groups.append(InputGroup(features, scale, periods, product=profile == POLYNOMIAL))
        parameters: tuple[float, ...] = ()
        if profile == RATIONAL_QUADRATIC:
            parameters = (float(10.0 ** rng.uniform(-1.0, 3.0)),)
        elif profile == STABLE:
            parameters = (float(rng.uniform(1.0, 2.0)),)
        elif profile == POLYNOMIAL:
            parameters = (float(rng.integers(1, 6)), float(rng.uniform(0.0, 1.0)))
        steps: list[Step] = [Leaf(len(groups) - 1, profile, parameters)]
        if rng.random() < 0.5:
            steps.append(Scale(float(rng.uniform(0.1, 2.0))))
        return steps

    def build(count: int) -> list[Step]:
        if count == 1:
            return leaf()
        split = int(rng.integers(1, count))
        steps = [*build(split), *build(count - split), Add() if rng.random() < 0.6 else Multiply()]
        return [*steps, Scale(float(rng.uniform(0.5, 2.0)))] if rng.random() < 0.2 else steps

    steps = tuple(build(leaves))
    return ProgramKernel(n_features, TileProgram(tuple(groups), steps, amplitude))
