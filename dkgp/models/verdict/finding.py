"""A finding: something that is wrong, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass

# Fewer test samples tell nothing.
FEWEST_SAMPLES = 30
# Of a false alarm, for each kind of finding.
LEVEL = 1e-4
# Points of coverage that matter.
COVERAGE_MATTERS = 0.015
# A model is worse than a rival by this factor.
WORSE = 1.05


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: `kind` for programs, `text` what was seen, `advice` what to do next.

    Parameters of dkgp's commands stand in backticks.
    """

    kind: str
    text: str
    advice: str

    def to_json(self) -> dict[str, str]:
        """Plain JSON."""
        return {"kind": self.kind, "text": self.text, "advice": self.advice}
