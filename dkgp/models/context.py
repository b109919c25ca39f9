"""Context of a training run: executor, memory, allowed error of products, and callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import Variances
from dkgp.operators.block_tasks import InputSource
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.operators.product_error import AUTO, ProductError
from dkgp.solvers.base import Solver
from dkgp.solvers.driver import Watch
from dkgp.solvers.registry import products_conflict


@dataclass(frozen=True)
class RunContext(Watch):
    """Context of a training run: the executor, its limits, and callbacks.

    Parameters
    ----------
    executor : BlockExecutor
        Executor of the tasks; see `dkgp.cluster.open_executor`.
    callback, within, checkpointing, interrupted
        See `dkgp.solvers.Watch`.
    coordinator_input_bytes : int
        Memory limit of the coordinator's inputs; see `BlockedKernelOperator`.
    product_error : ProductError
        Allowed error of an entry of a product with K; certificates include it.
    note : callable, optional
        Called with one line on the chosen method for products, and the reason.
    unit : str
        Unit in which a prediction reports progress, such as "cells" of a map.
    """

    executor: BlockExecutor
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES
    product_error: ProductError = AUTO
    note: Callable[[str], None] | None = None
    unit: str = "samples"

    @classmethod
    def of(cls, context: RunContext | BlockExecutor) -> RunContext:
        """Return the context; an executor alone gives a context without callbacks and checkpoints."""
        return context if isinstance(context, RunContext) else cls(context)

    def require_products(self, solver: Solver | None) -> None:
        """Raise `InputError` if products have an error bound but the solver evaluates the entries itself."""
        if solver is not None and (conflict := products_conflict(self.product_error, solver.name)) is not None:
            raise InputError(conflict)

    def operator(
        self,
        kernel: Kernel,
        noise_variance: Variances,
        source: InputSource,
        *,
        tolerance: float | None = None,
        by_length: bool = False,
    ) -> BlockedKernelOperator:
        """Return Kbar = K + s2 I on the source's samples, to be opened by `with`.

        `tolerance` is the largest entry of the gradient at the end of a solve. `by_length` is true if the solution is
        certified by the gradient's norm; see `ProductError.operator`.
        """
        return self.product_error.operator(
            kernel,
            noise_variance,
            source,
            self.executor,
            tolerance=tolerance,
            by_length=by_length,
            coordinator_input_bytes=self.coordinator_input_bytes,
            note=self.note,
        )
