"""The state of a run of a fixed-size LS-SVM, as its checkpoints hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from dkgp.kernels import Kernel
from dkgp.models.classification.fixed_size.chosen import Chosen
from dkgp.models.classification.fixed_size.searches.asked import RecordedSearch
from dkgp.operators.base import FloatArray, IndexArray


@dataclass
class SearchState:
    """Everything that a checkpoint holds."""

    start: Kernel
    started_by: str
    prototypes: FloatArray
    indices: IndexArray | None
    search: RecordedSearch | None
    folds: int
    labels: str  # their digest
    passes: int = 0
    best: Chosen | None = None
    weighted: bool = False  # by the weights that were considered
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def iteration(self) -> int:
        """Passes done."""
        return self.passes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        arrays: dict[str, NDArray[Any]] = {"prototypes": self.prototypes}
        if self.indices is not None:
            arrays["indices"] = self.indices
        return arrays if self.best is None else arrays | self.best.arrays()

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        return {
            "iteration": self.passes,
            "labels": self.labels,
            "start": self.start.to_json(),
            "started_by": self.started_by,
            "search": None if self.search is None else self.search.state(),
            "best": None if self.best is None else self.best.metadata(),
            "weighted": self.weighted,
            "history": self.history,
        }

    def restore(self, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what a checkpoint holds, but for the start, which is given."""
        self.passes, self.history = int(metadata["iteration"]), list(metadata["history"])
        self.weighted = bool(metadata.get("weighted", False))
        if self.search is not None:
            self.search.restore(metadata["search"])
        self.best = None if metadata["best"] is None else Chosen.restored(metadata["best"], arrays, self.folds)
