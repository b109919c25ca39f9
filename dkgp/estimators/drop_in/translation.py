"""One table between scikit-learn's kernels and dkgp's, both ways.

Both libraries measure distances in length scales, so a line is a matter of names: gamma = 1 / (2 l^2), and an amplitude
that is a field here is a `ConstantKernel` that multiplies there. Values k(x, x') are the same; bounds, and which
numbers are fixed, belong to scikit-learn's objects and stay there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.estimators.drop_in.parameters import kernels as sk
from dkgp.kernels import (
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    White,
)

_MATERN: dict[float, type[Matern12 | Matern32 | Matern52 | SquaredExponential]] = {
    0.5: Matern12,
    1.5: Matern32,
    2.5: Matern52,
    math.inf: SquaredExponential,
}


@dataclass(frozen=True)
class Line:
    """One kind of kernel in both libraries.

    Attributes
    ----------
    theirs : type
        scikit-learn's class; a subclass of it is another kernel.
    ours : tuple of type
        dkgp's classes that come back as it; empty where another line takes them back.
    forward : callable
        (scikit-learn's kernel, d) to dkgp's.
    backward : callable
        dkgp's kernel to scikit-learn's.
    """

    theirs: type[Any]
    ours: tuple[type[Kernel], ...]
    forward: Callable[[Any, int], Kernel]
    backward: Callable[[Any], Any] | None = None


def to_dkgp(kernel: Any, n_features: int) -> Kernel:
    """dkgp's kernel with the values k(x, x') of a scikit-learn kernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
    n_features : int
        d of the inputs.

    Returns
    -------
    Kernel
        White noise in it stands as `White`.

    Raises
    ------
    InputError
        A kernel that dkgp does not have; names it, and kernels that can be used.

    Examples
    --------
    >>> to_dkgp(4.0 * sk.RBF(0.5), 2)
    SquaredExponential(gamma=(2.0,), variance=4.0, n_features=2)
    """
    for line in LINES:
        if type(kernel) is line.theirs:
            return line.forward(kernel, n_features)
    raise _unknown(kernel, "is none of scikit-learn's kernels that dkgp computes tile by tile")


def to_scikit_learn(kernel: Kernel) -> Any:
    """scikit-learn's kernel with the values k(x, x') of one of dkgp's, such as a `GPRegressor`'s `kernel_`.

    Bounds are scikit-learn's own.

    Raises
    ------
    InputError
        A kernel that scikit-learn does not have: on some of the features, with weights by feature, or of a function.

    Examples
    --------
    >>> to_scikit_learn(SquaredExponential.from_length_scales([0.5, 2.0], variance=4.0))
    2**2 * RBF(length_scale=[0.5, 2])
    """
    for line in LINES:
        if line.backward is not None and isinstance(kernel, line.ours):
            return line.backward(kernel)
    names = ", ".join(sorted(our.type_name for line in LINES for our in line.ours))
    raise InputError(
        f"scikit-learn has no kernel of dkgp's type {kernel.type_name!r}; it has those of {names}. Predict with the "
        "estimator that the kernel came from"
    )


def _unknown(kernel: Any, why: str) -> InputError:
    return InputError(
        f"{type(kernel).__name__} {why}. Use sums, products and powers of RBF, Matern (nu 0.5, 1.5, 2.5 or inf), "
        "RationalQuadratic, ExpSineSquared (of one feature), DotProduct, ConstantKernel and WhiteKernel; or so few "
        "samples that the kernel matrix fits `dense_bytes`, where every kernel object works; or dkgp.GPRegressor, "
        "whose kernels may be functions of yours (dkgp.kernels.register_function)"
    )


# --------------------------------------------------------------------------------------------------- of a distance


def _length_scales(kernel: Any, d: int) -> Sequence[float]:
    scales = np.atleast_1d(np.squeeze(np.asarray(kernel.length_scale, dtype=np.float64)))
    if scales.ndim != 1 or len(scales) not in (1, d):
        raise InputError(
            f"{type(kernel).__name__} has {scales.size} length scales; expected one, or one for each of {d} features"
        )
    values: list[float] = scales.tolist()
    return values


def _rbf(kernel: Any, d: int) -> Kernel:
    return SquaredExponential.from_length_scales(_length_scales(kernel, d), n_features=d)


def _matern(kernel: Any, d: int) -> Kernel:
    if kernel.nu not in _MATERN:
        raise _unknown(kernel, f"of nu = {kernel.nu:g} is one that dkgp does not have")
    return _MATERN[kernel.nu].from_length_scales(_length_scales(kernel, d), n_features=d)


def _rational_quadratic(kernel: Any, d: int) -> Kernel:
    return RationalQuadratic.from_length_scales(_length_scales(kernel, d), n_features=d, alpha=float(kernel.alpha))


def _periodic(kernel: Any, d: int) -> Kernel:
    if d != 1:
        raise _unknown(kernel, f"of {d} features is a function of their distance, which need not be positive definite")
    return Periodic.from_length_scales(float(kernel.length_scale), float(kernel.periodicity), n_features=1)


def _scales_back(kernel: Any) -> Any:
    scales = kernel.length_scales
    return scales[0] if len(scales) == 1 else np.asarray(scales)


def _times(amplitude: float, kernel: Any) -> Any:
    return kernel if amplitude == 1.0 else sk.ConstantKernel(amplitude) * kernel


def _rational_quadratic_back(kernel: RationalQuadratic) -> Any:
    if len(kernel.gamma) > 1:
        raise InputError(
            f"scikit-learn's RationalQuadratic has one length scale; got {len(kernel.gamma)}, one for each feature"
        )
    return _times(kernel.variance, sk.RationalQuadratic(kernel.length_scales[0], kernel.alpha))


def _periodic_back(kernel: Periodic) -> Any:
    if kernel.n_features != 1:
        raise InputError(
            f"scikit-learn's ExpSineSquared is periodic in a distance; got a kernel of {kernel.n_features} features, "
            "periodic in each"
        )
    return _times(kernel.variance, sk.ExpSineSquared(kernel.length_scales[0], kernel.period[0]))


# ---------------------------------------------------------------------------------------------- of a dot product


def _dot_product(kernel: Any, d: int) -> Kernel:
    return Polynomial((1.0,), offset=float(kernel.sigma_0) * float(kernel.sigma_0), degree=1, n_features=d)


def _dot_product_back(kernel: Linear | Polynomial) -> Any:
    """v (w x'y + c)^p = v w^p (x'y + c / w)^p."""
    if len(kernel.weight) > 1:
        raise InputError(
            f"scikit-learn's DotProduct weighs all features alike; got {len(kernel.weight)} weights, one a feature"
        )
    weight = kernel.weight[0]
    # Without an offset there is none to search for, and no logarithm of it.
    bounds: Any = (1e-5, 1e5) if kernel.offset > 0.0 else "fixed"
    inner = sk.DotProduct(math.sqrt(kernel.offset / weight), bounds)
    return _times(kernel.variance * weight**kernel.degree, inner if kernel.degree == 1 else inner**kernel.degree)


# ------------------------------------------------------------------------------------------------------- composites


def _product(kernel: Any, d: int) -> Kernel:
    """Product of two kernels; an amplitude is folded into the kernel that it multiplies."""
    first, second = to_dkgp(kernel.k1, d), to_dkgp(kernel.k2, d)
    for amplitude, other in ((first, second), (second, first)):
        if isinstance(amplitude, Constant):
            field = getattr(other, "variance", None)
            return Scaled(other, amplitude.variance) if field is None else _amplified(other, amplitude.variance)
    return Product((first, second))


def _amplified(kernel: Any, factor: float) -> Kernel:
    amplified: Kernel = replace(kernel, variance=kernel.variance * factor)
    return amplified


def _power(kernel: Any, d: int) -> Kernel:
    """k^e, for most kernels of every e > 0, for the others of whole e; `InputError` if it is no kernel of dkgp's."""
    return _powered(kernel, to_dkgp(kernel.kernel, d), float(kernel.exponent))


def _powered(kernel: Any, base: Kernel, e: float) -> Kernel:
    if e > 0.0:
        match base:
            case Constant():
                return replace(base, variance=base.variance**e)
            case SquaredExponential() | Periodic():  # exp(-s)^e = exp(-e s)
                return replace(base, gamma=tuple(e * g for g in base.gamma), variance=base.variance**e)
            case Matern12():  # exp(-r)^e = exp(-e r), and r goes with the root of gamma
                return replace(base, gamma=tuple(e * e * g for g in base.gamma), variance=base.variance**e)
            case RationalQuadratic():  # ((1 + s / a)^-a)^e: a and s both e-fold
                gamma = tuple(e * g for g in base.gamma)
                return replace(base, gamma=gamma, alpha=e * base.alpha, variance=base.variance**e)
            case Scaled():
                return Scaled(_powered(kernel, base.kernel, e), base.scale**e)
            case Product():
                return Product(tuple(_powered(kernel, part, e) for part in base.parts))
            case Polynomial() if e.is_integer():
                return replace(base, degree=base.degree * int(e), variance=base.variance**e)
    if e >= 1.0 and e.is_integer():
        return base if e == 1.0 else Product((base,) * int(e))
    raise _unknown(kernel, f"** {e:g} of a kernel of dkgp's type {base.type_name!r} is not exact")


def _nested(operation: Callable[[Any, Any], Any], kernel: Sum | Product) -> Any:
    return functools.reduce(operation, (to_scikit_learn(part) for part in kernel.parts))


LINES: tuple[Line, ...] = (
    Line(sk.RBF, (SquaredExponential,), _rbf, lambda k: _times(k.variance, sk.RBF(_scales_back(k)))),
    Line(
        sk.Matern,
        (Matern12, Matern32, Matern52),
        _matern,
        lambda k: _times(
            k.variance, sk.Matern(_scales_back(k), nu=next(nu for nu, ours in _MATERN.items() if type(k) is ours))
        ),
    ),
    Line(sk.RationalQuadratic, (RationalQuadratic,), _rational_quadratic, _rational_quadratic_back),
    Line(sk.ExpSineSquared, (Periodic,), _periodic, _periodic_back),
    Line(sk.DotProduct, (Linear, Polynomial), _dot_product, _dot_product_back),
    Line(
        sk.ConstantKernel,
        (Constant,),
        lambda k, d: Constant(float(k.constant_value), d),
        lambda k: sk.ConstantKernel(k.variance),
    ),
    Line(sk.WhiteKernel, (White,), lambda k, d: White(float(k.noise_level), d), lambda k: sk.WhiteKernel(k.variance)),
    Line(
        sk.Sum,
        (Sum,),
        lambda k, d: Sum((to_dkgp(k.k1, d), to_dkgp(k.k2, d))),
        lambda k: _nested(sk.Sum, k),
    ),
    Line(sk.Product, (Product,), _product, lambda k: _nested(sk.Product, k)),
    Line(sk.Exponentiation, (Scaled,), _power, lambda k: _times(k.scale, to_scikit_learn(k.kernel))),
)
"""The table; a power has no class of its own here, nor a multiple there."""
