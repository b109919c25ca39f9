"""A kernel's description in words: its expression, and the numbers of each part, with the features they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["kernel_text"]

MOST_NUMBERS = 12
# What a description holds besides numbers to be shown.
_STRUCTURE = ("type", "n_features", "features", "kernel", "parts")
_FEATURELESS = ("constant", "white")


def kernel_text(kernel: Mapping[str, Any], feature_names: Sequence[str] = ()) -> str:
    """Describe a kernel for people, several lines.

    Parameters
    ----------
    kernel : mapping
        What `Kernel.to_json` gave; of a type that is not known here, too.
    feature_names : sequence of d str, optional
        Features without a name go by their number.

    Returns
    -------
    str
        The expression, as it is written for `--kernel` but for its numbers, then a line for each part:
        `rbf[lat, lon]: variance 1, gamma 0.5 (lat), 0.2 (lon)`.
    """
    return "\n".join([_expression(kernel, None, feature_names), *_parts(kernel, None, feature_names)])


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
        return _expression(kernel["kernel"], _chosen(kernel, features), names, factor=factor)
    return kind + _place(kernel, features, names)


def _parts(kernel: Mapping[str, Any], features: Sequence[int] | None, names: Sequence[str]) -> list[str]:
    kind = str(kernel.get("type"))
    if kind in ("sum", "product"):
        return [line for part in kernel["parts"] for line in _parts(part, features, names)]
    if kind == "scaled":
        return _parts(kernel["kernel"], features, names)
    if kind == "on":
        return _parts(kernel["kernel"], _chosen(kernel, features), names)
    values = [f"{name} {_values(value, features, names)}" for name, value in kernel.items() if name not in _STRUCTURE]
    return [f"{kind}{_place(kernel, features, names)}: {', '.join(values)}"] if values else []


def _chosen(kernel: Mapping[str, Any], features: Sequence[int] | None) -> list[int]:
    """Features of the data that a kernel of some of `features` is of."""
    return [int(index) if features is None else features[index] for index in kernel["features"]]


def _place(kernel: Mapping[str, Any], features: Sequence[int] | None, names: Sequence[str]) -> str:
    if features is None or kernel.get("type") in _FEATURELESS:
        return ""
    return f"[{', '.join(_name(index, names) for index in features)}]"


def _values(value: Any, features: Sequence[int] | None, names: Sequence[str]) -> str:
    if not isinstance(value, list):
        return _number(value)
    places = list(range(len(value))) if features is None else features
    if len(value) == 1 or len(places) != len(value):  # one for all features
        return ", ".join(_number(item) for item in value)
    shown = [f"{_number(item)} ({_name(place, names)})" for item, place in zip(value, places, strict=True)]
    more = len(shown) - MOST_NUMBERS
    return ", ".join(shown[:MOST_NUMBERS]) + (f" and {more} more" if more > 0 else "")


def _name(index: int, names: Sequence[str]) -> str:
    return str(names[index]) if index < len(names) else f"feature {index}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
