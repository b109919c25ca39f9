"""A kernel that is a user's own plain function, compiled when it is used.

The function is written for numbers: `def cauchy(s): return 1.0 / (1.0 + s)`. Stores and hyperparameter files never hold
code, only the name that a function was registered under; a process that reads a name registers the function first. The
function itself travels to workers, with the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, Settings, register_kernel, require_positive
from dkgp.kernels.distance import DistanceKernel
from dkgp.kernels.fields import (
    VARIANCE_BOUNDS,
    checked_features,
    checked_per_feature,
    gamma_setting,
    integer_from_json,
    known_settings,
    list_from_json,
    number_from_json,
)
from dkgp.kernels.functions import Function, compile_function, name_of_function, registered_function
from dkgp.kernels.program import Profile, ProgramBuilder

_KINDS = ("squared_distance", "pair")
# Error (step^4 / 30) of the fifth derivative, and rounding 1.5 eps / step: both about 1e-13.
_LOG_STEP = 1e-3

# A user's function is taken to be good to sixteen roundings, to change no faster than in proportion, and, where it is
# one of s, to be no steeper than one in r.
USER = Profile("user", None, rounding=16.0, steepest=lambda r, parameter: 1.0, bulge=lambda r, parameter: 1.0)
"""A user's function of s"""
USER_PAIR = replace(USER, name="user_pair", steepest=lambda r, parameter: 0.0, reads="rows")
"""A user's function of the two rows of the group's scaled inputs"""


@register_kernel
@dataclass(frozen=True)
class UserKernel(Kernel):
    """k(x, x') = v f(s) with s = sum_l gamma_l (x_l - x'_l)^2, or k(x, x') = v f(x, x').

    Positive definiteness is up to the function: see `check_positive_definite`. So are its bits: dkgp's own kernels have
    the same ones on every processor, while a function is compiled for each as it stands there, with the C library's
    `exp` and `sin`, and may differ in the last bits between processors, systems and versions. Where that matters, run
    all workers on machines of one kind.

    Parameters
    ----------
    function : callable
        f, of a number s >= 0 or of two rows (d,), returning a number. Arithmetic, `math`, branches and loops can be
        compiled; most of Python cannot.
    gamma : float or sequence of d floats
        Inverse squared length scales of s, as in `SquaredExponential`. A function of two rows has none.
    variance : float, default 1.0
        v.
    of : {"squared_distance", "pair"}
        The argument of f.
    n_features : int, optional
        Number of features d, where one gamma serves several, or for a function of two rows.
    derivative : callable, optional
        f'(s). By default a central difference of fourth order in log s, in float64, whose relative error is some
        1e-12 for smooth functions. Gradients of predictions in their inputs need it.
    name : str, optional
        The name that `function` is registered under, found by itself.

    Raises
    ------
    InputError
        A function that cannot be called or does not return a finite number, or parameters that are not admissible.

    Examples
    --------
    >>> kernel = UserKernel(lambda s: 1.0 / (1.0 + s), gamma=(0.5, 0.5))
    >>> float(kernel([[0.0, 0.0]], [[1.0, 1.0]])[0, 0])
    0.5
    """

    function: Function
    gamma: tuple[float, ...] = ()
    variance: float = 1.0
    of: str = "squared_distance"
    n_features: int = 0
    derivative: Function | None = None
    name: str | None = None

    type_name: ClassVar[str] = "user"

    def __post_init__(self) -> None:
        if self.of not in _KINDS:
            raise InputError(f'a user\'s kernel is a function of "squared_distance" or "pair"; got {self.of!r}')
        if not callable(self.function):
            raise InputError(f"a kernel function must be callable; got {self.function!r}")
        if self.derivative is not None and not callable(self.derivative):
            raise InputError(f"its derivative must be callable; got {self.derivative!r}")
        if self.name is None:
            self.settle(name=name_of_function(self.function))
        self.settle(variance=require_positive("the kernel's variance", self.variance))
        if self.of == "pair":
            if self.gamma != () or self.derivative is not None:
                raise InputError("a function of two rows has no gamma and no derivative in s; leave both out")
            if not self.n_features:
                raise InputError("a function of two rows needs n_features, the number of features of a row; got none")
            self.settle(n_features=checked_features(self.n_features))
        else:
            gamma = checked_per_feature("gamma", self.gamma, zero=True)
            self.settle(gamma=gamma, n_features=checked_features(self.n_features, gamma=gamma))
        self._probe()

    @classmethod
    def registered(cls, name: str, **parameters: Any) -> UserKernel:
        """The kernel of a function by the name that it is registered under; see `register_function`."""
        entry = registered_function(name)
        return cls(entry.function, derivative=entry.derivative, name=name, **parameters)

    def _probe(self) -> None:
        """Call the function once, where every function of a kernel must exist."""
        origin = np.zeros(self.n_features)
        try:
            value = float(self.function(origin, origin) if self.of == "pair" else self.function(0.0))
        except Exception as error:
            raise InputError(
                f"{self._called} failed at {'two rows of zeros' if self.of == 'pair' else 's = 0'}: "
                f"{type(error).__name__}: {error}. Expected a number"
            ) from error
        if not math.isfinite(value) or value < 0.0:
            raise InputError(
                f"{self._called} must be finite and not negative where x = x'; got {value!r} at the origin"
            )

    @property
    def _called(self) -> str:
        return f"the kernel function '{self.name or getattr(self.function, '__name__', self.function)}'"

    @property
    def unproven(self) -> str:
        """The function's name, "a function" without one."""
        return self.name or "a function"

    @property
    def stationary(self) -> bool:
        """True if f is a function of s."""
        return self.of == "squared_distance"

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Call the function for each pair, in Python; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        values: FloatArray
        if self.of == "pair":
            values = np.array([[float(self.function(a, b)) for b in right] for a in left]).reshape(
                len(left), len(right)
            )
        else:
            s = self._plain().scaled_distances(left, right)
            values = np.array([float(self.function(float(value))) for value in s.ravel()]).reshape(s.shape)
        return self.variance * values

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """k(x, x) for each row of `A`: (a,)."""
        rows = self.one_side(A)
        if self.of == "pair":
            return self.variance * self._of_rows(rows, rows, paired=True)[:, 0]
        return np.full(len(rows), self.variance * float(self.function(0.0)))

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values by the compiled function; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        if self.of == "squared_distance":
            return self._plain().linearise(left, right)
        values = self._of_rows(left, right)
        values *= self.variance
        return values, lambda weights: np.array([np.vdot(weights, values)])

    def _of_rows(self, left: FloatArray, right: FloatArray, *, paired: bool = False) -> FloatArray:
        """f of all pairs of rows (a, b), or where `paired` of each row with its own (a, 1)."""
        values = np.empty((len(left), 1 if paired else len(right)))
        apply = _compiled_pairs(self.function, self._called)
        apply(np.ascontiguousarray(left), np.ascontiguousarray(right), paired, values)
        return values

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the gammas that are not zero and v for a function of s, v for a function of two rows."""
        if self.of == "squared_distance":
            return self._plain().parameters()
        return (Parameter("variance", self.variance, *VARIANCE_BOUNDS),)

    def with_parameters(self, values: ArrayLike) -> UserKernel:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        if self.of == "squared_distance":
            plain = self._plain().with_parameters(self.checked_values(values))
            return replace(self, gamma=plain.gamma, variance=plain.variance)
        (variance,) = self.checked_values(values)
        return replace(self, variance=variance)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Push the function; see `Kernel.emit`."""
        if self.of == "pair":
            builder.leaf(USER_PAIR, columns, [1.0] * self.n_features, function=self.function)
        else:
            scale = [math.sqrt(value) for value in self._plain().feature_gamma]
            builder.leaf(USER, columns, scale, function=self.function, derivative=self.derivative)
        return self.variance

    def to_json(self) -> dict[str, Any]:
        """`{"type": "user", "function": name, "of": ..., "variance": v, "gamma": [...]}` and maybe `n_features`."""
        name = self.name or name_of_function(self.function)
        if name is None:
            raise InputError(
                f"{self._called} has no name that a file could hold, and code is never written; register it first, "
                'with @dkgp.kernels.register_function("NAME") above its definition'
            )
        document = {"type": self.type_name, "function": name, "of": self.of, "variance": self.variance}
        if self.of == "pair":
            return {**document, "n_features": self.n_features}
        document = {**document, "gamma": list(self.gamma)}
        return document if len(self.gamma) == self.n_features else {**document, "n_features": self.n_features}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> UserKernel:
        """Rebuild from `to_json`'s form; the function must have been registered."""
        name, of = document.get("function"), document.get("of", "squared_distance")
        if not isinstance(name, str):
            raise InputError(f'a kernel of type "user" needs "function", the name of one; got {name!r}')
        return cls.registered(
            name,
            gamma=() if of == "pair" else list_from_json(document, "gamma"),
            variance=number_from_json(document, "variance", "the kernel's variance", 1.0),
            of=of,
            n_features=integer_from_json(document, "n_features", 0),
        )

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> UserKernel:
        """See `Kernel.start`; the function must have been registered."""
        name = settings.pop("function", None)
        if not isinstance(name, str):
            raise InputError('user needs the name of a registered function: user(function="name")')
        registered_function(name)
        if settings.get("of") == "pair":
            return cls.registered(name, n_features=n_features, **known_settings(settings, "of"))
        gamma = gamma_setting(settings, n_features)
        known = known_settings(settings, "function", "length_scale", "isotropic", "of")
        return cls.registered(name, gamma=gamma, n_features=n_features, **known)

    def _plain(self) -> _FunctionOfDistance:
        return _FunctionOfDistance(
            self.gamma, self.variance, self.n_features, self.function, self.derivative, self._called
        )


@dataclass(frozen=True)
class _FunctionOfDistance(DistanceKernel):
    """The mathematics of a user's f(s), shared with the kernels that dkgp brings."""

    function: Function = abs
    derivative: Function | None = None
    called: str = ""

    type_name: ClassVar[str] = "user"

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s), compiled."""
        return self._apply(self.function, self.called, s)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s): the user's, or df/dlog s / s by a central difference of fourth order."""
        if self.derivative is not None:
            return self._apply(self.derivative, f"the derivative of {self.called}", s)
        result = np.zeros_like(s)
        for steps, weight in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
            result += weight * self.profile(s * math.exp(steps * _LOG_STEP))
        result /= 12.0 * _LOG_STEP
        return np.divide(result, s, out=np.zeros_like(s), where=s > 0.0)

    @staticmethod
    def _apply(function: Function, called: str, s: FloatArray) -> FloatArray:
        out = np.empty_like(s)
        _compiled_profile(function, called)(np.ascontiguousarray(s).reshape(-1), out.reshape(-1))
        return out


# --------------------------------------------------------------------------------------------------------------- checks


def has_user_function(kernel: Kernel) -> bool:
    """True if some part of the kernel is a user's function, so that nobody has proven it positive definite."""
    return any(part.unproven is not None for part in kernel.walk())


def check_positive_definite(kernel: Kernel, inputs: ArrayLike, *, samples: int = 256, seed: int = 0) -> None:
    """Make sure that the kernel's matrix on some of the inputs is symmetric and has no negative eigenvalue.

    Passing is no proof; but a kernel that is not positive definite mostly shows it on a few hundred samples.

    Parameters
    ----------
    inputs : (n, d) array_like
    samples : int, default 256
        How many of the inputs are drawn; all where there are fewer. O(samples^3).
    seed : int
        Of the draw.

    Raises
    ------
    InputError
        The matrix is not finite, not symmetric, or has an eigenvalue below zero by more than rounding, which is taken
        as 100 samples eps times the greatest.
    """
    rows = kernel.one_side(inputs)
    if samples < 1:
        raise InputError(f"samples must be at least 1; got {samples}")
    if rows.shape[0] > samples:
        sample = np.random.default_rng(seed).choice(rows.shape[0], size=samples, replace=False)
        rows = rows[np.sort(sample)]
    if not rows.shape[0]:
        return
    K = kernel(rows, rows)
    advice = "Correct the function, or use one that is known to be positive definite"
    if not np.all(np.isfinite(K)):
        i, j = (int(index) for index in np.argwhere(~np.isfinite(K))[0])
        raise InputError(
            f"the kernel is {K[i, j]} between rows {rows[i].tolist()} and {rows[j].tolist()}; expected finite values. "
            f"{advice}"
        )
    largest = float(np.abs(K).max())
    asymmetry = float(np.abs(K - K.T).max())
    if asymmetry > 100.0 * np.finfo(np.float64).eps * largest:
        raise InputError(
            f"the kernel is not symmetric: k(x, x') and k(x', x) differ by up to {asymmetry:.3g}, with values up to "
            f"{largest:.3g}; expected a function that does not mind the order. {advice}"
        )
    eigenvalues = np.linalg.eigvalsh(K)
    smallest, greatest = float(eigenvalues[0]), float(eigenvalues[-1])
    if smallest < -100.0 * len(K) * np.finfo(np.float64).eps * max(greatest, 0.0) or greatest < 0.0:
        raise InputError(
            f"the kernel is not positive definite: its matrix on {len(K)} samples has the eigenvalue {smallest:.3g}, "
            f"{abs(smallest / greatest):.1e} of the greatest, {greatest:.3g}; expected none below zero. {advice}"
        )


# ---------------------------------------------------------------------------------------------------------- compilation


@lru_cache(maxsize=64)
def _compiled_profile(function: Function, called: str) -> Function:
    import numba

    compiled = compile_function(function, called, (numba.float64,))

    @numba.njit(nogil=True)
    def apply(s, out):  # type: ignore[no-untyped-def]
        for i in range(s.shape[0]):
            try:
                out[i] = compiled(s[i])
            except Exception:
                out[i] = np.nan

    return cast(Function, apply)


@lru_cache(maxsize=64)
def _compiled_pairs(function: Function, called: str) -> Function:
    import numba

    compiled = compile_function(function, called, (numba.float64[::1], numba.float64[::1]))

    @numba.njit(nogil=True)
    def apply(A, B, paired, out):  # type: ignore[no-untyped-def]
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                try:
                    out[i, j] = compiled(A[i], B[i if paired else j])
                except Exception:
                    out[i, j] = np.nan

    return cast(Function, apply)
