"""An executor that tells which rounds it ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dkgp.cluster import LocalExecutor


class RecordingExecutor(LocalExecutor):
    """Notes the name and the number of groups of every round."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.rounds: list[tuple[str, int]] = []

    def submit(
        self, name: str, task: Any, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]], *hints: Any
    ) -> Any:
        self.rounds.append((name, len(groups)))
        return super().submit(name, task, arguments, groups, *hints)
