"""The surroundings of a training run: who computes, with which memory, how exact products are, and who watches."""

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
    """The surroundings of a training run: who computes and who watches.

    Parameters
    ----------
    executor : BlockExecutor
        Who computes; see `dkgp.cluster.open_executor`.
    callback, within, checkpointing, interrupted
        See `dkgp.solvers.Watch`.
    coordinator_input_bytes : int
        What the coordinator may spend on inputs; see `BlockedKernelOperator`.
    product_error : ProductError
        Allowed error of an entry of a product with K; certificates allow for it.
    note : callable, optional
        Called with one line on the products that are taken, and why.
    """

    executor: BlockExecutor
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES
    product_error: ProductError = AUTO
    note: Callable[[str], None] | None = None

    @classmethod
    def of(cls, context: RunContext | BlockExecutor) -> RunContext:
        """The context; of an executor alone, one without callbacks and checkpoints."""
        return context if isinstance(context, RunContext) else cls(context)

    def require_products(self, solver: Solver | None) -> None:
        """Refuse a bound of products beside a solver that evaluates the entries itself; `InputError`."""
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

        `tolerance` is the largest entry of the gradient that a solve is to end with, and `by_length` is true where the
        solution is certified by the gradient's length; see `ProductError.operator`.
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
