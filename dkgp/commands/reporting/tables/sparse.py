"""Record of a sparse model as tables: the basis, what is proven of the model, and what it took."""

from __future__ import annotations

from rich.console import RenderableType

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, assumed_rows, seconds_of, size, table_of

__all__ = ["sparse_tables"]

# Bounds from below on the least risk, by what they are made of.
_BOUNDS = {
    "none": "nothing but zero",
    "subset": "the exact model of a subset",
    "residual": "the residual's direction",
    "trace": "fits with more noise",
    "descent": "block coordinate descent",
}
MOST_TARGETS = 8


def sparse_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the record of `dkgp sparse`."""
    rows: Rows = [
        ("model", document["out"]),
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("method, basis", f"{document['method']}, {document['basis_size']:,} samples ({document['basis']})"),
        ("done", document["reason"]),
        *_distances(document),
        *_evidence(document),
        *assumed_rows(document),
        ("kernel entries evaluated", f"{document['kernel_evaluations']:.3g}"),
        ("seconds", seconds_of(document)),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
    ]
    if document["checkpoint"] is not None:
        rows.append(("checkpoint", f"{document['checkpoint']} (go on with --resume)"))
    return [table_of("Trained, sparse" if document["converged"] else "Not as near as was asked for", rows)]


def _distances(document: Document) -> Rows:
    """What is proven of the mean, target by target."""
    names = document["target_names"][:MOST_TARGETS]
    rows: Rows = []
    for target, name in enumerate(names):
        of = f" of {name}" if len(names) > 1 else ""
        bound = document["best"][target]
        proven = f"{document['rms_bound_raw'][target]:.4g}, {document['rms_bound'][target]:.3g} of the targets' spread"
        rows.append((f"RMS distance to the exact mean{of}", f"proven <= {proven} (by {_BOUNDS.get(bound, bound)})"))
        rows.append((f"duality gap{of}", f"{document['gap'][target]:.3g}"))
    return rows


def _evidence(document: Document) -> Rows:
    """Bounds on log p(y), where the method has them."""
    if document["elbo"] is None:
        return []
    bounds = f"{document['elbo']:.8g} to {document['evidence_upper']:.8g} nats"
    return [
        ("log evidence of the exact model", bounds),
        ("KL from the exact posterior", f"at most {document['divergence']:.4g} nats"),
    ]
