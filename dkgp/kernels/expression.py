"""Kernels as text: `"matern32 + linear"`, `"rbf['lat', 'lon'] * periodic['day'](period=0.8) + 0.5 * constant + white"`.

The text is parsed as a Python expression. Only names, +, *, numbers, feature brackets and named settings are accepted;
nothing is ever evaluated. The kernel of a name defines its settings. `kernel_text` writes a kernel as text
again, with the numbers of its parts.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel, Settings, kernel_types
from dkgp.kernels.composite import Product, Sum
from dkgp.kernels.wrapped import Scaled

_LONGEST_TEXT = 10_000
_MOST_NUMBERS = 12
# Entries of a description besides the numbers to be shown.
_STRUCTURE = ("type", "n_features", "features", "kernel", "parts")


def parse_kernel(text: str, n_features: int, feature_names: Sequence[str] | None = None) -> Kernel:
    """Build a kernel from an expression, with starting values for standardised inputs.

    Parameters
    ----------
    text : str
        Kernels by name, `+`, `*`, numbers as factors, and brackets for precedence. `name[features]` is a kernel of some
        features, each a name in quotes or a number from 0. `name(setting=value)` sets a starting value:
        `variance` all have, `length_scale` (one number or a list) those of a distance, `isotropic=True` (one length
        scale or weight for all features) these and dot products. Of others see each kernel's `start`: `period`,
        `alpha`, `degree`, `offset`; of users' kernels `function="name"`, and `of="pair"` where it is one of two rows.
    n_features : int
        Number of features d of the inputs.
    feature_names : sequence of d str, optional
        The names for brackets.

    Returns
    -------
    Kernel
        Of `n_features` features. Starting values where none are given: amplitudes 1; gamma_l = 1 / (2 d), so that
        samples are an exponent of 1 apart; periods 1; weights 1 / d, so that k(x, x) is 1 in the mean.

    Raises
    ------
    InputError
        A part of the text is not understood; the message names it and its column.

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


def kernel_names() -> tuple[str, ...]:
    """Names of kernels in expressions: of those that have been registered, composites apart."""
    return tuple(sorted(name for name, kind in kernel_types().items() if not kind.composite))


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
            kernel = self._read(ast.parse(self._source, mode="eval").body)
        except SyntaxError as error:
            raise self._error(self._indent + (error.offset or 1) - 1, f"not an expression ({error.msg})") from None
        except (RecursionError, MemoryError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the kernel '{self._text[:40]}...' cannot be read: {error}") from None
        if not isinstance(kernel, Kernel):
            raise self._error(0, f"expected a kernel; got the number {kernel:g}")
        return kernel

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
        settings: Settings | None = None
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
        names = kernel_names()
        if inner.id not in names:
            near = get_close_matches(inner.id, names, n=1)
            meant = f". Did you mean {near[0]}?" if near else ""
            message = f"unknown kernel '{inner.id}'; expected one of {', '.join(names)}{meant}"
            raise self._error(self._at(inner), message)
        kind = kernel_types()[inner.id]
        try:
            if features is None:
                return kind.start(dict(settings or {}), self._n_features)
            return kind.start(dict(settings or {}), len(features)).on(features, self._n_features)
        except InputError as error:
            raise self._error(self._at(inner), str(error)) from None

    def _features(self, node: ast.expr) -> list[int]:
        items = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        features = [self._feature(item) for item in items]
        if not features or len(set(features)) < len(features):
            raise self._error(self._at(node), "expected at least one feature, and none twice")
        return features

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

    def _settings(self, node: ast.Call) -> Settings:
        if node.args:
            raise self._error(self._at(node.args[0]), "settings need their names, like period=2.0")
        settings: Settings = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._error(self._at(keyword.value), "settings need their names, like period=2.0")
            value = keyword.value
            items = value.elts if isinstance(value, ast.List | ast.Tuple) else None
            if items is not None:
                settings[keyword.arg] = [self._number(item) for item in items]
            elif isinstance(value, ast.Constant) and isinstance(value.value, bool | str):
                settings[keyword.arg] = value.value
            else:
                number = self._number(value)
                settings[keyword.arg] = value.value if isinstance(value, ast.Constant) else number
        return settings


# ----------------------------------------------------------------------------------------------------------- the writer


def kernel_text(kernel: Mapping[str, Any], feature_names: Sequence[str] = ()) -> str:
    """Describe a kernel for people, several lines.

    Parameters
    ----------
    kernel : mapping
        A document of `Kernel.to_json`, of an unknown type too.
    feature_names : sequence of d str, optional
        Features without a name go by their number.

    Returns
    -------
    str
        The expression, as it is written for `--kernel` but for its numbers, then a line for each part:
        `rbf[lat, lon]: variance 1, gamma 0.5 (lat), 0.2 (lon)`. A kernel of one part has only this line.
    """
    expression, parts = _expression(kernel, None, feature_names), list(_parts(kernel, None, feature_names))
    is_single = len(parts) == 1 and parts[0].startswith(f"{expression}: ")
    return "\n".join(parts if is_single else [expression, *parts])


def _expression(
    kernel: Mapping[str, Any], features: Sequence[int] | None, names: Sequence[str], *, factor: bool = False
) -> str:
    """The kernel of the given features (None: all) without its parts' numbers; in brackets where it is a `factor`."""
    kind = str(kernel.get("type"))
    if kind in ("sum", "product"):
        parts = [_expression(part, features, names, factor=kind == "product") for part in kernel["parts"]]
        text = (" + " if kind == "sum" else " * ").join(parts)
        return f"({text})" if factor and kind == "sum" else text
    if kind == "scaled":
        return f"{_number(kernel['scale'])} * {_expression(kernel['kernel'], features, names, factor=True)}"
    if kind == "on":
        return _expression(kernel["kernel"], _features_of(kernel, features), names, factor=factor)
    return kind + _place(kernel, features, names)


def _parts(kernel: Mapping[str, Any], features: Sequence[int] | None, names: Sequence[str]) -> list[str]:
    kind = str(kernel.get("type"))
    if kind in ("sum", "product"):
        return [line for part in kernel["parts"] for line in _parts(part, features, names)]
    if kind == "scaled":
        return _parts(kernel["kernel"], features, names)
    if kind == "on":
        return _parts(kernel["kernel"], _features_of(kernel, features), names)
    values = [f"{name} {_values(value, features, names)}" for name, value in kernel.items() if name not in _STRUCTURE]
    return [f"{kind}{_place(kernel, features, names)}: {', '.join(values)}"] if values else []


def _features_of(kernel: Mapping[str, Any], features: Sequence[int] | None) -> list[int]:
    """Features of the data that a kernel "on" some of `features` looks at."""
    return [int(index) if features is None else features[index] for index in kernel["features"]]


def _place(kernel: Mapping[str, Any], features: Sequence[int] | None, names: Sequence[str]) -> str:
    known = kernel_types().get(str(kernel.get("type")))
    if features is None or (known is not None and known.featureless):
        return ""
    return f"[{', '.join(_name(index, names) for index in features)}]"


def _values(value: Any, features: Sequence[int] | None, names: Sequence[str]) -> str:
    if not isinstance(value, list):
        return _number(value)
    places = list(range(len(value))) if features is None else features
    if len(value) == 1 or len(places) != len(value):  # one for all features
        return ", ".join(_number(item) for item in value)
    shown = [f"{_number(item)} ({_name(place, names)})" for item, place in zip(value, places, strict=True)]
    more = len(shown) - _MOST_NUMBERS
    return ", ".join(shown[:_MOST_NUMBERS]) + (f" and {more} more" if more > 0 else "")


def _name(index: int, names: Sequence[str]) -> str:
    return str(names[index]) if index < len(names) else f"feature {index}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
