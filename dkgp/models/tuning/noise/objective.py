"""The objectives of tuning with noise by sample: s2_i = s2 exp(design_i' w), the weights w among the parameters.

Both objectives have a symmetric matrix W with dL = sum_ij W_ij dKbar_ij. With respect to log s2 that is
sum_i W_ii s2_i, and with respect to w_j sum_i W_ii s2_i design_ij.
"""

from __future__ import annotations

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.models.tuning.leave_one_out import LeaveOneOut
from dkgp.models.tuning.marginal_likelihood import DenseObjective, KernelFamily, LogMarginalLikelihood
from dkgp.models.tuning.tasks import Objective


class ByDesign(DenseObjective):
    """An objective at theta = (the kernel's log parameters, w, log s2), for a `design` (n, q)."""

    def __init__(self, family: KernelFamily, targets: FloatArray, design: FloatArray) -> None:
        super().__init__(family, targets)
        self._design = design

    def _fill(self, parameters: FloatArray) -> None:
        self._family.matrix(self._of_kernel(parameters), self._kernel_matrix)
        np.copyto(self._work, self._kernel_matrix)
        np.einsum("ii->i", self._work)[:] += self._noises(parameters)

    def _slopes(self, parameters: FloatArray, weights: FloatArray) -> FloatArray:
        each = self._noises(parameters) * np.diagonal(weights)
        of_kernel = self._family.contract(self._of_kernel(parameters), self._kernel_matrix, weights)
        return np.concatenate([of_kernel, self._design.T @ each, [each.sum()]])

    def _of_kernel(self, parameters: FloatArray) -> FloatArray:
        return parameters[: -1 - self._design.shape[1]]

    def _noises(self, parameters: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # Kbar is then not finite, and has no likelihood
            return np.asarray(np.exp(parameters[-1] + self._design @ parameters[-1 - self._design.shape[1] : -1]))


class LikelihoodByDesign(ByDesign, LogMarginalLikelihood):
    """log p(Y | X, theta)."""


class LeaveOneOutByDesign(ByDesign, LeaveOneOut):
    """The sum of log p(y_i | X, y_-i, theta)."""


BY_DESIGN: dict[Objective, type[ByDesign]] = {"likelihood": LikelihoodByDesign, "loo": LeaveOneOutByDesign}
