"""Kernels as text: `"matern32 + linear"`, `"rbf['lat', 'lon'] * periodic['day'](period=0.8) + 0.5 * constant + white"`.

The text is read as a Python expression, and of Python only names, +, *, numbers, feature brackets and named settings
are understood; nothing is ever evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel
from dkgp.kernels.composite import Product, Scaled, Sum
from dkgp.kernels.constants import Constant, White
from dkgp.kernels.dot_product import Linear, Polynomial
from dkgp.kernels.fields import gamma_of_length_scales
from dkgp.kernels.function_registry import registered_function
from dkgp.kernels.periodic import Periodic
from dkgp.kernels.squared_exponential import SquaredExponential
from dkgp.kernels.stationary import Matern12, Matern32, Matern52, RationalQuadratic
from dkgp.kernels.user import UserKernel

__all__ = ["KERNEL_NAMES", "parse_kernel"]

_LONGEST_TEXT = 10_000


def parse_kernel(text: str, n_features: int, feature_names: Sequence[str] | None = None) -> Kernel:
    """Build a kernel from an expression, with starting values for standardised inputs.

    Parameters
    ----------
    text : str
        Kernels by name, `+`, `*`, numbers as factors, and brackets for precedence. `name[features]` is a kernel of some
        features, each a name in quotes or a number from 0. `name(setting=value)` sets what the kernel starts from:

        - `length_scale`, one number or a list (rbf, matern12, matern32, matern52, rq, periodic, user),
        - `period`, one number or a list (periodic), `alpha` (rq), `degree` and `offset` (polynomial),
        - `variance` (all),
        - `isotropic=True`: one length scale or weight for all features,
        - `function="name"`, of a registered function, and `of="pair"` where it is one of two rows (user).
    n_features : int
        Number of features d of the inputs.
    feature_names : sequence of d str, optional
        What brackets may name.

    Returns
    -------
    Kernel
        Of `n_features` features. Starting values where none are given: amplitudes 1; gamma_l = 1 / (2 d), so that
        samples are an exponent of 1 apart; periods 1; weights 1 / d, so that k(x, x) is 1 in the mean.

    Raises
    ------
    InputError
        Says what was not understood, and in which column.

    Examples
    --------
    >>> parse_kernel("rbf['day'] + constant", 2, ["day", "year"]).to_json()["parts"][0]["features"]
    [0]
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a kernel is written as an expression like 'rbf + linear'; got {text!r}")
    if len(text) > _LONGEST_TEXT:
        raise InputError(f"a kernel's text has at most {_LONGEST_TEXT} characters; got {len(text)}")
    return _Reader(text, n_features, feature_names).kernel()


# -------------------------------------------------------------------------------------------------- the kernels by name

_Settings = dict[str, Any]


def _gamma(settings: _Settings, d: int) -> tuple[float, ...]:
    scales, isotropic = settings.pop("length_scale", None), _isotropic(settings)
    if scales is None:
        return (1.0 / (2.0 * d),) * (1 if isotropic else d)
    return _spread_out("length_scale", gamma_of_length_scales(scales), d, isotropic)


def _isotropic(settings: _Settings) -> bool:
    value = settings.pop("isotropic", False)
    if not isinstance(value, bool):
        raise InputError(f"isotropic must be True or False; got {value!r}")
    return value


def _spread_out(name: str, values: tuple[float, ...], d: int, isotropic: bool) -> tuple[float, ...]:
    if len(values) not in (1, d):
        raise InputError(f"{name} takes one value, or one for each of {d} features; got {len(values)}")
    if isotropic and len(values) > 1:
        raise InputError(f"isotropic=True takes one {name}; got {len(values)}")
    return values if isotropic or len(values) == d else values * d


def _of_distance(cls: Callable[..., Kernel], *allowed: str) -> Callable[[_Settings, int], Kernel]:
    def build(settings: _Settings, d: int) -> Kernel:
        gamma = _gamma(settings, d)
        return cls(gamma=gamma, n_features=d, **_only(settings, "length_scale", "isotropic", *allowed))

    return build


def _periodic(settings: _Settings, d: int) -> Kernel:
    isotropic = settings.get("isotropic") is True
    gamma = _gamma(settings, d)
    period = _spread_out("period", tuple(np.atleast_1d(settings.pop("period", 1.0)).tolist()), d, isotropic)
    return Periodic(gamma, period, n_features=d, **_only(settings, "length_scale", "isotropic", "period"))


def _of_product(cls: Callable[..., Kernel], *allowed: str) -> Callable[[_Settings, int], Kernel]:
    def build(settings: _Settings, d: int) -> Kernel:
        weight = (1.0 / d,) * (1 if _isotropic(settings) else d)
        degree = settings.get("degree", 2)
        if cls is Polynomial and isinstance(degree, int):
            # (1 + 1)^degree in the mean, as it is, would start far from the targets' variance of 1.
            settings.setdefault("variance", 2.0**-degree)
        return cls(weight=weight, n_features=d, **_only(settings, "isotropic", *allowed))

    return build


def _featureless(cls: Callable[..., Kernel]) -> Callable[[_Settings, int], Kernel]:
    return lambda settings, d: cls(n_features=d, **_only(settings))


def _user(settings: _Settings, d: int) -> Kernel:
    name = settings.pop("function", None)
    if not isinstance(name, str):
        raise InputError('user needs the name of a registered function: user(function="name")')
    registered_function(name)
    if settings.get("of") == "pair":
        return UserKernel.registered(name, n_features=d, **_only(settings, "of"))
    gamma = _gamma(settings, d)
    return UserKernel.registered(
        name, gamma=gamma, n_features=d, **_only(settings, "function", "length_scale", "isotropic", "of")
    )


_BUILDERS: dict[str, Callable[[_Settings, int], Kernel]] = {
    "constant": _featureless(Constant),
    "linear": _of_product(Linear),
    "matern12": _of_distance(Matern12),
    "matern32": _of_distance(Matern32),
    "matern52": _of_distance(Matern52),
    "periodic": _periodic,
    "polynomial": _of_product(Polynomial, "degree", "offset"),
    "rbf": _of_distance(SquaredExponential),
    "rq": _of_distance(RationalQuadratic, "alpha"),
    "user": _user,
    "white": _featureless(White),
}
KERNEL_NAMES = tuple(sorted(_BUILDERS))


def _only(settings: _Settings, *allowed: str) -> _Settings:
    known = {"variance", *allowed}
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise InputError(f"unknown setting {', '.join(unknown)}; expected one of {', '.join(sorted(known))}")
    return settings


# ----------------------------------------------------------------------------------------------------------- the reader


class _Reader:
    """Walks over Python's own syntax tree of the text."""

    def __init__(self, text: str, n_features: int, feature_names: Sequence[str] | None) -> None:
        # One line without leading blanks, which would be an indentation.
        self._text = text.translate({9: " ", 10: " ", 13: " "})
        self._source = self._text.strip()
        self._indent = len(self._text) - len(self._text.lstrip())
        self._n_features = n_features
        self._names = None if feature_names is None else list(feature_names)

    def kernel(self) -> Kernel:
        try:
            found = self._read(ast.parse(self._source, mode="eval").body)
        except SyntaxError as error:
            raise self._error(self._indent + (error.offset or 1) - 1, f"not an expression ({error.msg})") from None
        except (RecursionError, MemoryError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the kernel '{self._text[:40]}...' cannot be read: {error}") from None
        if not isinstance(found, Kernel):
            raise self._error(0, f"expected a kernel; got the number {found:g}")
        return found

    def _error(self, column: int, message: str) -> InputError:
        column = min(max(column, 0), len(self._text))
        return InputError(
            f"cannot read the kernel at column {column + 1}: {message}\n  {self._text}\n  {' ' * column}^"
        )

    def _at(self, node: ast.expr) -> int:
        # Columns of the tree count bytes.
        return self._indent + len(self._source.encode()[: node.col_offset].decode(errors="ignore"))

    def _read(self, node: ast.expr) -> Kernel | float:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self._combine(node, self._read(node.left), self._read(node.right))
        if isinstance(node, ast.Constant):
            return self._number(node)
        if isinstance(node, ast.Name | ast.Subscript | ast.Call):
            return self._named(node)
        raise self._error(self._at(node), "expected kernels joined by + and *, and numbers as factors")

    def _combine(self, node: ast.BinOp, left: Kernel | float, right: Kernel | float) -> Kernel | float:
        if isinstance(left, Kernel) and isinstance(right, Kernel):
            return Sum((left, right)) if isinstance(node.op, ast.Add) else Product((left, right))
        if isinstance(node.op, ast.Add):
            raise self._error(
                self._at(node.right if isinstance(left, Kernel) else node.left),
                "a number can be a factor, not a summand; write it as '0.5 * constant'",
            )
        if isinstance(left, Kernel) or isinstance(right, Kernel):
            kernel, factor = (left, right) if isinstance(left, Kernel) else (right, left)
            assert isinstance(kernel, Kernel)
            assert isinstance(factor, float)
            inner, scale = (kernel.kernel, kernel.scale) if isinstance(kernel, Scaled) else (kernel, 1.0)
            try:
                return Scaled(inner, factor * scale)
            except InputError as error:
                raise self._error(self._at(node), str(error)) from None
        return left * right

    def _number(self, node: ast.expr) -> float:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(self._at(node), f"expected the name of a kernel or a number; got {value!r}")
        try:
            return float(value)
        except OverflowError:
            raise self._error(self._at(node), "the number is too large") from None

    def _named(self, node: ast.expr) -> Kernel:
        """`name`, `name[...]`, `name(...)`, and the last two in either order."""
        features: list[int] | None = None
        settings: _Settings | None = None
        inner: ast.expr = node
        while not isinstance(inner, ast.Name):
            if isinstance(inner, ast.Subscript) and features is None:
                features = self._features(inner.slice)
                inner = inner.value
            elif isinstance(inner, ast.Call) and settings is None:
                settings = self._settings(inner)
                inner = inner.func
            else:
                message = "expected the name of a kernel, with [features] or (settings) at most once each"
                raise self._error(self._at(inner), message)
        build = _BUILDERS.get(inner.id)
        if build is None:
            raise self._error(
                self._at(inner), f"unknown kernel '{inner.id}'; expected one of {', '.join(KERNEL_NAMES)}"
            )
        try:
            if features is None:
                return build(dict(settings or {}), self._n_features)
            return build(dict(settings or {}), len(features)).on(features, self._n_features)
        except InputError as error:
            raise self._error(self._at(inner), str(error)) from None

    def _features(self, node: ast.expr) -> list[int]:
        items = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        found = [self._feature(item) for item in items]
        if not found or len(set(found)) < len(found):
            raise self._error(self._at(node), "expected at least one feature, and none twice")
        return found

    def _feature(self, node: ast.expr) -> int:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str):
            if self._names is None:
                message = f"features have no names here, use numbers from 0; got '{value}'"
                raise self._error(self._at(node), message)
            if value not in self._names:
                shown = ", ".join(f"'{name}'" for name in self._names[:12]) + (", ..." if len(self._names) > 12 else "")
                raise self._error(self._at(node), f"there is no feature '{value}'; expected one of {shown}")
            return self._names.index(value)
        if isinstance(value, bool) or not isinstance(value, int):
            message = "expected features: names in quotes, or numbers from 0"
            raise self._error(self._at(node), message)
        if value >= self._n_features:
            message = f"feature {value} is out of range; expected 0 to {self._n_features - 1}"
            raise self._error(self._at(node), message)
        return value

    def _settings(self, node: ast.Call) -> _Settings:
        if node.args:
            raise self._error(self._at(node.args[0]), "settings need their names, like period=2.0")
        found: _Settings = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._error(self._at(keyword.value), "settings need their names, like period=2.0")
            value = keyword.value
            items = value.elts if isinstance(value, ast.List | ast.Tuple) else None
            if items is not None:
                found[keyword.arg] = [self._number(item) for item in items]
            elif isinstance(value, ast.Constant) and isinstance(value.value, bool | str):
                found[keyword.arg] = value.value
            else:
                number = self._number(value)
                found[keyword.arg] = value.value if isinstance(value, ast.Constant) else number
        return found
