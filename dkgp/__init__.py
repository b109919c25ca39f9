"""Exact Gaussian process regression by greedy block coordinate descent, out of core, on Dask.

The layers are importable as attributes (`dkgp.solvers.solve`, `dkgp.kernels.SquaredExponential`,
`dkgp.data.open_dataset`) and are loaded on first use.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["__version__"]

__version__ = "0.1.0"

_LAYERS = ("cluster", "data", "errors", "kernels", "models", "operators", "solvers")


def __getattr__(name: str) -> ModuleType:
    if name in _LAYERS:
        return importlib.import_module(f"dkgp.{name}")
    raise AttributeError(f"module 'dkgp' has no attribute {name!r}; its layers are {', '.join(_LAYERS)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAYERS])
