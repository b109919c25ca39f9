"""A basis that grows until the model is proven to be as near to the exact one as a target says."""

# Hangs on dkgp/models/exact.py.

from dkgp.models.sparse.ladder.climb import climb
from dkgp.models.sparse.ladder.target import LadderTarget, Rung

__all__ = ["LadderTarget", "Rung", "climb"]
