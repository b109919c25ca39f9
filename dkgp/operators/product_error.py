"""Allowed error of products with K: every entry evaluated, a proven bound, or the choice of a forecast.

Other layers have a `ProductError` and ask it for an operator, for its memory and for its entry in a run's identity.
They do not know how products are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from dkgp.errors import InputError, MemoryBudgetError
from dkgp.registry import FURTHER, LaterModule, Option, Values

if TYPE_CHECKING:
    from dkgp.cluster.executors.base import BlockExecutor
    from dkgp.kernels import Kernel
    from dkgp.kernels import terms as kernel_terms
    from dkgp.operators import blocked
    from dkgp.operators.base import Variances
    from dkgp.operators.block_tasks import InputSource
    from dkgp.operators.blocked import BlockedKernelOperator
    from dkgp.operators.cells import operator as cells
    from dkgp.operators.cells.operator import Forecast
else:
    # The help of a command shows the option and takes no product.
    blocked, cells = LaterModule("dkgp.operators.blocked"), LaterModule("dkgp.operators.cells.operator")
    kernel_terms = LaterModule("dkgp.kernels.terms")

Value: TypeAlias = float | Literal["auto", "none"]
# Name of the option in stores, jobs and checkpoints of earlier versions, whose products were sums by a kd-tree.
OLD_NAME = "tree_error"
# Bound of "auto" over the tolerance. Where the length of a column's errors matters, that is of their root mean square,
# and of a single entry this share: max|g| is then known to within half of the tolerance.
SHARE_OF_TOLERANCE, SHARE_OF_ENTRY = 0.1, 0.5
# Roundings of a product with a single weight of one and a kernel of variance one, as they are counted.
LEAST_ERROR = 2.0 * float(np.finfo(np.float64).eps)
# Largest part of a decision's tolerance that the errors of products may take; the gradient needs the rest.
SHARE_OF_DECISIONS = 0.5
# Samples from which on a run notes why "auto" evaluates every entry: with fewer that takes a moment.
NOTED_SAMPLES = 30_000


# Words on the values of the option, after "must be" and "expected".
VALUES = "a positive finite number, auto or none"


def is_product_error(value: Any) -> bool:
    """Return whether a value is one of the option's."""
    if isinstance(value, str):
        return value in ("auto", "none")
    is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    return is_number and math.isfinite(value) and value > 0.0


@dataclass(frozen=True)
class ProductMemory:
    """Bytes that products take in addition to those that evaluate every entry.

    - `kept_bytes`: kept in each worker's process from the first product on.
    - `work_bytes`: taken besides in the course of a product.
    """

    kept_bytes: int = 0
    work_bytes: int = 0


@dataclass(frozen=True)
class ProductError:
    """Allowed error of an entry of a product with K, in addition to rounding.

    `value` is a number E: every entry of a verifying product K V is proven to be off by at most E, in the units of
    K V. Or "none": every kernel entry is evaluated. Or "auto": a forecast decides, and the bound is below a tenth of
    the tolerance that the operator is made for; see `operator`.

    `began` is true for "auto" in a run that goes on with products within a bound, without a new forecast.
    """

    value: Value = "auto"
    began: bool = False

    def __post_init__(self) -> None:
        if not is_product_error(self.value):
            raise InputError(f"`product_error` must be {VALUES}; got {self.value!r}")

    @classmethod
    def of(cls, value: ProductError | Value | None) -> ProductError:
        """Return the product error of an option's value; None stands for "none"."""
        if isinstance(value, ProductError):
            return value
        return cls("none" if value is None else value)

    @property
    def number(self) -> float | None:
        """The bound that is asked for; None with "auto" and "none"."""
        return None if isinstance(self.value, str) else float(self.value)

    def to_json(self) -> Value:
        """Return the option's value."""
        return self.value

    def bounds(self, kernel: Kernel, n: int) -> bool:
        """Return whether products over n samples are within a bound, and not sums of all entries, by the forecast."""
        return self.number is not None or (self.value == "auto" and self._forecast(kernel, n).takes_cells)

    def _forecast(self, kernel: Kernel, n: int) -> Forecast:
        if self.began:
            return cells.Forecast(True, "as they were when the run began")
        return cells.choose(kernel, n)

    def record(self, kernel: Kernel, n: int, products: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the entry `product_error` of an identity or a summary; nothing where every entry is evaluated.

        A summary also names the operator's `products`, where their kind was chosen.
        """
        bounded = {"product_error": self.value} if self.bounds(kernel, n) else {}
        return {**bounded, **({"products": dict(products)} if products else {})}

    def conflict(self, tolerance: float) -> str | None:
        """Return words on a number that is not below the tolerance on the gradient; None where there is no conflict."""
        if self.number is None or self.number < tolerance:
            return None
        return (
            f"`product_error` must be below `tolerance`, or its errors decide the gradient; got {self.number:g} with "
            f"`tolerance` {tolerance:g}. Give {tolerance / 10:g} or less, or auto"
        )

    def decision_conflict(self, limit: float | None, tolerance: float) -> str | None:
        """Return words on a number that is too large for decisions within a tolerance; None where there is no conflict.

        `limit` is the error of products that alone may move decisions by the tolerance; None where it is not known.
        """
        if self.number is None or limit is None or self.number <= SHARE_OF_DECISIONS * limit:
            return None
        largest = _rounded_down(SHARE_OF_DECISIONS * limit)
        needed = tolerance * self.number / (SHARE_OF_DECISIONS * limit)
        return (
            f"decisions within `tolerance` {tolerance:g} of these samples take `product_error` {largest:g} or less, or "
            f"its errors decide them; got {self.number:g}. Give {largest:g} or less, or auto or none, or a `tolerance` "
            f"of {-_rounded_down(-needed):g} or more"
        )

    def operator(
        self,
        kernel: Kernel,
        noise: Variances,
        source: InputSource,
        executor: BlockExecutor,
        *,
        tolerance: float | None = None,
        by_length: bool = False,
        coordinator_input_bytes: int | None = None,
        note: Callable[[str], None] | None = None,
    ) -> BlockedKernelOperator:
        """Return Kbar = K + D with products of this error, to be opened by `with`.

        Parameters
        ----------
        tolerance : float, optional
            Error of an entry of K V at which a solve is as far from the exact solution as its user allows, such as its
            tolerance on the gradient. Without one "auto" evaluates every entry.
        by_length : bool
            Whether proofs take the length of the errors of a column, and not their greatest: "auto" then limits that,
            and single entries to half of the tolerance.
        coordinator_input_bytes : int, optional
            As for `BlockedKernelOperator`, with the same default.
        note : callable, optional
            Called with one line on the products that "auto" takes, and why; and with one line where products in double
            precision evaluate every entry because no other bound is as small.

        Raises
        ------
        InputError
            A number, with a kernel or features for which no such bound is known, or below all roundings.
        """
        budget = coordinator_input_bytes
        if budget is None:
            budget = blocked.DEFAULT_COORDINATOR_INPUT_BYTES
        if self.number is not None:
            self.require_kernel(kernel)
            return cells.CellKernelOperator(
                kernel, noise, source, executor, error=self.number, note=note, coordinator_input_bytes=budget
            )
        reason = None
        if self.value == "auto" and tolerance is not None:
            forecast = self._forecast(kernel, source.n_samples)
            reason = forecast.reason
            if forecast.takes_cells:
                share = SHARE_OF_ENTRY if by_length else SHARE_OF_TOLERANCE
                return cells.CellKernelOperator(
                    kernel,
                    noise,
                    source,
                    executor,
                    error=share * tolerance,
                    mean_error=SHARE_OF_TOLERANCE * tolerance if by_length else None,
                    forecast=forecast.reason,
                    note=note,
                    coordinator_input_bytes=budget,
                )
        operator = blocked.BlockedKernelOperator(kernel, noise, source, executor, coordinator_input_bytes=budget)
        if reason is not None:
            operator.products = {"kind": "every entry", "reason": reason}
            if note is not None and source.n_samples >= NOTED_SAMPLES:
                note(f"products evaluate every kernel entry: {reason}")
        return operator

    def require_kernel(self, kernel: Kernel) -> None:
        """Refuse a number with a kernel for which no bound is known, or none so small; `InputError`.

        That is known before anything is started. Where only the weights of a product are too large for the number, that
        product evaluates every entry, and a line says so: a refusal would lose the work of the rounds before it.
        """
        if self.number is None:
            return
        try:
            least = LEAST_ERROR * kernel_terms.terms_of(kernel).magnitude
        except InputError as error:
            raise InputError(
                f"`product_error` {self.number:g} asks for a bound that is not known of this kernel: {error}. Take "
                "`product_error` auto or none, which evaluate every entry of such a kernel"
            ) from None
        if self.number < least:
            raise InputError(
                f"`product_error` {self.number:g} is below the roundings of any product with this kernel: a single "
                f"weight of 1 has an error of {least:.2g}. Give a larger number, or auto or none, which use full "
                "double "
                "precision"
            )

    def share(self, kernel: Kernel, n: int) -> float | None:
        """Return the time of a solver's product over that of evaluating every entry; None where every one is."""
        self.require_kernel(kernel)
        return cells.product_share(kernel, n) if self.bounds(kernel, n) else None

    def memory(self, kernel: Kernel, n: int, columns: int, worker_bytes: int | None) -> ProductMemory | None:
        """Return the memory of products over n samples with so many columns.

        None where "auto" would take products that need more than half of a worker's memory, which is `worker_bytes`
        where it is known. Raises `MemoryBudgetError` for a number in this case.
        """
        self.require_kernel(kernel)
        if not self.bounds(kernel, n):
            return ProductMemory()
        memory = ProductMemory(*cells.estimated_bytes(kernel, n, columns))
        if worker_bytes is None or memory.kept_bytes <= worker_bytes // 2:
            return memory
        if self.number is None:
            return None
        raise MemoryBudgetError(
            f"products within `product_error` {self.number:g} over {n:,} samples take {memory.kept_bytes:,} bytes in "
            f"each process; half of a worker's memory is {worker_bytes // 2:,}. Give the workers more with "
            "`worker_memory`, or take `product_error` none"
        )


def _rounded_down(value: float) -> float:
    """Return a number of two digits that is not above a value; for words."""
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.floor(value / step) * step:.2g}")


AUTO = ProductError("auto")
EVERY_ENTRY = ProductError("none")


def read_product_error(text: str) -> Value:
    """Read a number, "auto" or "none": the `type` of the option."""
    word = text.strip().lower()
    if word == "auto":
        return "auto"
    if word == "none":
        return "none"
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{text!r} is no number; expected {VALUES}.") from None


def compile_bounded_products() -> None:
    """Compile products within a bound, or read them from the cache: one to three features, near entries of both types.

    Tolerances of rounds let near entries be in single precision where samples are many, those of checks do not.
    """
    from dkgp.kernels import SquaredExponential
    from dkgp.operators.cells.products import CellProducts

    rng = np.random.default_rng(0)
    for d in (1, 2, 3):
        terms, points = kernel_terms.terms_of(SquaredExponential((20.0,) * d)), rng.standard_normal((600, d))
        for tolerance in (1e-3, 1e-9):
            CellProducts(terms, points, tolerance).matmat(points[:, :1])


PRODUCT_ERROR = Option(
    help="Largest accepted error of each entry of a product with the kernel matrix. E: approximate products with a "
    "proven error of at most E (for kernels that decrease with the distance, and few features). none: evaluate "
    "all kernel entries. auto: the method with the shorter forecast time, with an error of at most a tenth of "
    "`tolerance`. Proven bounds include this error.",
    type=read_product_error,
    metavar="E|auto|none",
    values=Values(is_product_error, VALUES),
    group=FURTHER,
)


def successor(flag: str) -> str | None:
    """Return the option to give in the place of a flag of earlier versions, in words; None for another flag."""
    if flag.removeprefix("--").replace("-", "_") != OLD_NAME:
        return None
    return "`product_error` E takes its place, with the same bound E; or `product_error` auto or none"


def renamed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored options in which `tree_error`, of an earlier version, is `product_error`; None is left out."""
    values = {name: value for name, value in stored.items() if name != OLD_NAME}
    old = stored.get(OLD_NAME)
    return values if old is None else {"product_error": old, **values}
