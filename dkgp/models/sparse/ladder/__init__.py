"""A basis that grows until what is proven of the model is as near to the exact one as was asked for."""

from dkgp.models.sparse.ladder.climb import climb
from dkgp.models.sparse.ladder.target import LadderTarget, Rung

__all__ = ["LadderTarget", "Rung", "climb"]
