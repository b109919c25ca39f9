"""The surroundings of a training run: who computes, with which memory, how products are taken, and who watches."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.kernels import Kernel
from dkgp.operators import BlockedKernelOperator, TreeKernelOperator
from dkgp.operators.base import Noise
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.operators.inputs import InputSource
from dkgp.solvers.watch import Watch


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
    tree_error : float, optional
        Take products by pruned sums, each entry good to this; see `TreeKernelOperator`. Certificates allow for it.
    """

    executor: BlockExecutor
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES
    tree_error: float | None = None

    @classmethod
    def of(cls, context: RunContext | BlockExecutor) -> RunContext:
        """The context; of an executor alone, one without callbacks and checkpoints."""
        return context if isinstance(context, RunContext) else cls(context)

    def operator(self, kernel: Kernel, noise_variance: Noise, source: InputSource) -> BlockedKernelOperator:
        """Kbar = K + s2 I on the source's samples, to be opened by `with`."""
        budget = self.coordinator_input_bytes
        if self.tree_error is None:
            return BlockedKernelOperator(kernel, noise_variance, source, self.executor, coordinator_input_bytes=budget)
        return TreeKernelOperator(
            kernel, noise_variance, source, self.executor, error=self.tree_error, coordinator_input_bytes=budget
        )
