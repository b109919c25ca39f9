"""Tile programs run step by step in NumPy: what the compiled loops and the kernels' programs are compared with."""

from __future__ import annotations

import numpy as np

from dkgp.kernels.dot_product import POLYNOMIAL
from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Multiply, Scale, TileProgram
from dkgp.kernels.stationary import EXP2, MATERN12, MATERN32, MATERN52, RATIONAL_QUADRATIC
from dkgp.kernels.user import USER, USER_PAIR


def run(program: TileProgram, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """k(A, B) as the program has it: (a, b) float64."""
    stack: list[np.ndarray] = []
    for step in program.steps:
        match step:
            case Leaf():
                group = program.groups[step.group]
                stack.append(_leaf(step, group, _prepared(group, A), _prepared(group, B)))
            case Constant():
                stack.append(np.full((len(A), len(B)), step.value))
            case Scale():
                stack.append(stack.pop() * step.factor)
            case Add():
                stack.append(stack.pop() + stack.pop())
            case Multiply():
                stack.append(stack.pop() * stack.pop())
    (result,) = stack
    return program.amplitude * result


def _prepared(group: InputGroup, X: np.ndarray) -> np.ndarray:
    assert min(group.scale, default=1.0) > 0.0
    columns, scale = X[:, list(group.features)], np.array(group.scale)
    if group.periods is None:
        return columns * scale
    angles = 2.0 * np.pi * columns / np.array(group.periods)
    return np.hstack([np.cos(angles) * scale, np.sin(angles) * scale])


def _leaf(leaf: Leaf, group: InputGroup, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    if leaf.profile is USER_PAIR:
        return np.array([[leaf.function(x, z) for z in B] for x in A])
    if group.product:
        c, p = leaf.parameters[1], leaf.parameters[0]
        assert leaf.profile is POLYNOMIAL
        return (A @ B.T + c) ** p
    s = ((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2)
    u = np.sqrt(s)
    v = u * np.log(2.0)
    if leaf.profile == EXP2:
        return 2.0**-s
    if leaf.profile == MATERN12:
        return 2.0**-u
    if leaf.profile == MATERN32:
        return (1.0 + v) * 2.0**-u
    if leaf.profile == MATERN52:
        return (1.0 + v + v**2 / 3.0) * 2.0**-u
    if leaf.profile == RATIONAL_QUADRATIC:
        return (1.0 + s) ** -leaf.parameters[0]
    assert leaf.profile == USER
    return np.vectorize(leaf.function, otypes=[float])(s)
