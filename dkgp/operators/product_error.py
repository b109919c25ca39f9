"""Allowed error of products with K: every entry evaluated, a proven bound, or the choice of a forecast.

Other layers hold a `ProductError` and ask it for an operator, for its memory, and for what a run's identity has of it.
They know nothing of the way in which products are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import Kernel
from dkgp.operators.base import Noise
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, BlockedKernelOperator
from dkgp.operators.cells.forecast import choose, product_share
from dkgp.operators.inputs import ArrayInputs, InputSource
from dkgp.operators.tree.kd_tree import building_bytes, tree_bytes
from dkgp.operators.tree.operator import TreeKernelOperator
from dkgp.registry import FURTHER, Option

Value: TypeAlias = float | Literal["auto", "none"]
# Name of the option in stores, jobs and checkpoints of earlier versions, whose products were sums by a kd-tree.
OLD_NAME = "tree_error"


@dataclass(frozen=True)
class ProductMemory:
    """Bytes that products take beside those that evaluate every entry.

    - `kept_bytes`: held in each process from the first product on; a worker's cache has to have room for them.
    - `building_bytes`: taken besides while they are made.
    """

    kept_bytes: int = 0
    building_bytes: int = 0


@dataclass(frozen=True)
class ProductError:
    """Allowed error of an entry of a product with K, beside rounding.

    `value` is a number E: every entry of a verifying product K V is proven to be off by at most E, in the units of
    K V. Or "none": every kernel entry is evaluated. Or "auto": a forecast decides, and the bound is below a tenth of
    the tolerance that the operator is made for.
    """

    value: Value = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            if self.value not in ("auto", "none"):
                raise InputError(f"`product_error` must be a number, auto or none; got {self.value!r}")
        elif isinstance(self.value, bool) or not (math.isfinite(self.value) and self.value > 0.0):
            raise InputError(f"`product_error` must be positive and finite, or auto or none; got {self.value!r}")

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

    def record(self) -> dict[str, Any]:
        """Return the entry `product_error` of an identity or a summary; nothing where every entry is evaluated."""
        return {} if self.number is None else {"product_error": self.number}

    def conflict(self, tolerance: float) -> str | None:
        """Return words on a number that is not below the tolerance on the gradient; None where there is no conflict."""
        if self.number is None or self.number < tolerance:
            return None
        return (
            f"`product_error` must be below `tolerance`, or its errors decide the gradient; got {self.number:g} with "
            f"`tolerance` {tolerance:g}. Give {tolerance / 10:g} or less, or auto"
        )

    def operator(
        self,
        kernel: Kernel,
        noise: Noise,
        source: InputSource,
        executor: BlockExecutor,
        *,
        tolerance: float | None = None,
        coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
        note: Callable[[str], None] | None = None,
    ) -> BlockedKernelOperator:
        """Return Kbar = K + D with products of this error, to be opened by `with`.

        Parameters
        ----------
        tolerance : float, optional
            Error of an entry of K V at which a solve is as far from the exact solution as its user allows, such as its
            tolerance on the gradient. Without one "auto" evaluates every entry.
        coordinator_input_bytes : int
            As for `BlockedKernelOperator`.
        note : callable, optional
            Called with one line on the products that "auto" takes, and why.

        Raises
        ------
        InputError
            A number, with a kernel or features for which no such bound is known.
        """
        if self.number is None:
            return BlockedKernelOperator(
                kernel, noise, source, executor, coordinator_input_bytes=coordinator_input_bytes
            )
        return TreeKernelOperator(
            kernel, noise, source, executor, error=self.number, coordinator_input_bytes=coordinator_input_bytes
        )

    def require_kernel(self, kernel: Kernel) -> None:
        """Refuse a number with a kernel for which no bound is known, before anything is started; `InputError`."""
        if self.number is not None:
            with closing(LocalExecutor(1)) as executor:
                self.operator(kernel, 1.0, ArrayInputs(np.zeros((1, kernel.n_features))), executor).close()

    def share(self, kernel: Kernel, n: int) -> float | None:
        """Return the time of a solver's product over that of evaluating every entry; None where every one is."""
        if self.number is None and (self.value == "none" or not choose(kernel, n).takes_cells):
            return None
        return product_share(kernel, n)

    def memory(self, kernel: Kernel, n: int, cache_bytes: int) -> ProductMemory:
        """Return the memory of products over n samples; `MemoryBudgetError` where a worker's cache cannot keep it."""
        if self.number is None:
            return ProductMemory()
        width = feature_width(kernel)
        memory = ProductMemory(tree_bytes(n, width), building_bytes(n, width))
        if memory.kept_bytes > cache_bytes:
            raise MemoryBudgetError(
                f"products within `product_error` {self.number:g} over {n:,} samples take {memory.kept_bytes:,} bytes "
                f"in each process; a worker's cache holds {cache_bytes:,}. Give the workers more with "
                "--worker-memory, or take `product_error` none"
            )
        return memory


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
        raise ValueError(f"{text!r} is neither a number, nor 'auto' or 'none'.") from None


PRODUCT_ERROR = Option(
    help="Allowed error of an entry of a product with the kernel matrix. E: at most E, proven (kernels that fall with "
    "the distance, few features). none: every kernel entry is evaluated. auto: the quicker of these by a forecast, "
    "within a tenth of `tolerance`. Certificates allow for it.",
    type=read_product_error,
    metavar="E|auto|none",
    above=0,
    group=FURTHER,
)


def renamed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored options in which `tree_error`, of an earlier version, is `product_error`; None is left out."""
    values = {name: value for name, value in stored.items() if name != OLD_NAME}
    old = stored.get(OLD_NAME)
    return values if old is None else {"product_error": old, **values}
