"""Kernels as sums of profiles, of one scaled distance each, and a constant: the form that proven expansions need."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel
from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Multiply, Profile, Scale

MOST_FEATURES = 3


@dataclass(frozen=True)
class Term:
    """amplitude * profile(sum_l (scale_l (x_l - x'_l))^2) over some features l."""

    profile: Profile
    parameters: tuple[float, ...]
    features: tuple[int, ...]
    scale: tuple[float, ...]
    amplitude: float = 1.0

    @property
    def parameter(self) -> float:
        """The first parameter of the profile, or zero."""
        return self.parameters[0] if self.parameters else 0.0


@dataclass(frozen=True)
class Terms:
    """k(x, x') = constant + the sum of the terms."""

    terms: tuple[Term, ...]
    constant: float
    n_features: int

    @property
    def magnitude(self) -> float:
        """Greatest value of the kernel, k(x, x)."""
        return math.fsum([self.constant, *(term.amplitude for term in self.terms)])


def terms_of(kernel: Kernel) -> Terms:
    """Return the terms of a kernel.

    Raises
    ------
    InputError
        A term of more than three features, a periodic kernel, one of dot products or of a user's function, or a product
        that is not one profile of one distance.
    """
    program = kernel.tile_program()
    stack: list[Terms] = []
    for step in program.steps:
        if isinstance(step, Leaf):
            stack.append(_leaf(step, program.groups[step.group], kernel.n_features))
        elif isinstance(step, Constant):
            stack.append(Terms((), float(step.value), kernel.n_features))
        elif isinstance(step, Scale):
            stack.append(_scaled(stack.pop(), step.factor))
        else:
            second, first = stack.pop(), stack.pop()
            stack.append(_added(first, second) if isinstance(step, Add) else _multiplied(step, first, second))
    (result,) = stack
    result = _scaled(result, program.amplitude)
    for term in result.terms:
        if len(term.features) > MOST_FEATURES:
            raise InputError(
                f"proven expansions take at most {MOST_FEATURES} features in each term of a kernel; one term has "
                f"{len(term.features)}"
            )
    return result


def _leaf(leaf: Leaf, group: InputGroup, n_features: int) -> Terms:
    profile = leaf.profile
    if group.periods is not None:
        raise InputError("proven expansions take kernels of distances between inputs; this kernel has a periodic part")
    if profile.reads != "distance":
        raise InputError(
            "proven expansions take kernels of one scaled distance; this kernel has a part of "
            f"{'dot products' if profile.reads == 'product' else 'whole rows'}"
        )
    if profile.modulus is None or profile.formula is None:
        raise InputError(
            "proven expansions need a bound over complex distances, and none is known of a part of this kernel"
        )
    if not group.features:
        return Terms((), 1.0, n_features)
    return Terms((Term(profile, tuple(leaf.parameters), group.features, group.scale),), 0.0, n_features)


def _scaled(terms: Terms, factor: float) -> Terms:
    scaled = tuple(replace(term, amplitude=term.amplitude * factor) for term in terms.terms)
    return replace(terms, terms=scaled, constant=terms.constant * factor)


def _added(first: Terms, second: Terms) -> Terms:
    return replace(first, terms=first.terms + second.terms, constant=first.constant + second.constant)


def _multiplied(step: Multiply, first: Terms, second: Terms) -> Terms:
    """Multiply out; two terms must be one profile that turns products into sums of squared distances."""
    products = [_product(a, b) for a in first.terms for b in second.terms]
    scaled = _scaled(first, second.constant).terms + _scaled(second, first.constant).terms
    kept = tuple(term for term in (*products, *scaled) if term.amplitude != 0.0)
    return replace(first, terms=kept, constant=first.constant * second.constant)


def _product(a: Term, b: Term) -> Term:
    if a.profile is not b.profile or not a.profile.multiplies:
        raise InputError(
            "proven expansions take a product of kernels only where it is one function of one distance, as "
            "that of two squared exponentials; this kernel has another product"
        )
    scale = dict(zip(a.features, a.scale, strict=True))
    for feature, factor in zip(b.features, b.scale, strict=True):
        scale[feature] = math.hypot(scale.get(feature, 0.0), factor)
    features = tuple(sorted(scale))
    return replace(a, features=features, scale=tuple(scale[f] for f in features), amplitude=a.amplitude * b.amplitude)
