"""Record of a sparse model as tables: the basis, what is proven of the model, and what it took."""

from __future__ import annotations

from rich.console import RenderableType

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, assumed_rows, seconds_of, size, table_of
from dkgp.kernels import kernel_text

# Bounds from below on the least risk, by what they are made of.
_BOUNDS = {
    "none": "nothing but zero",
    "subset": "the exact model of a subset",
    "residual": "the residual's direction",
    "trace": "fits with more noise",
    "descent": "passes over the kernel matrix",
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
        *_rungs(document),
        *assumed_rows(document),
        ("kernel entries evaluated", f"{document['kernel_evaluations']:.3g}"),
        ("seconds", seconds_of(document)),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
    ]
    if document["checkpoint"] is not None:
        rows.append(("checkpoint", f"{document['checkpoint']} (go on with --resume)"))
    return [table_of("Trained, sparse" if document["converged"] else "Not as near as was asked for", rows)]


def sparse_info_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show what `dkgp info` tells of a sparse model."""
    noise = f"{document['noise_variance']:.4g} (standardised)" + (
        ", by sample relative to this" if document["noise_by_sample"] else ""
    )
    rows: Rows = [
        ("sparse model", document["location"]),
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("method, basis", f"{document['method']}, {document['basis_size']:,} samples ({document['basis']})"),
        ("kernel", kernel_text(document["kernel"], document["features"])),
        ("noise variance", noise),
        *_distances({**document, "target_names": document["targets"]}),
        *_evidence(document),
        *assumed_rows(document["certificate"]),
        ("rounds of the choice", f"{document['rounds']:,}"),
        ("training set", document["fingerprint"]),
        ("dkgp", document["versions"].get("dkgp", "unknown")),
        ("stored", size(document["stored_bytes"])),
    ]
    return [table_of("", rows)]


def _distances(document: Document) -> Rows:
    """Proofs of the mean, target by target."""
    names = document["target_names"][:MOST_TARGETS]
    rows: Rows = []
    for target, name in enumerate(names):
        of = f" of {name}" if len(names) > 1 else ""
        bound = document["best"][target]
        proven = f"{document['rms_bound_raw'][target]:.4g}, {document['rms_bound'][target]:.3g} of the targets' spread"
        rows.append((f"RMS distance to the exact mean{of}", f"proven <= {proven} (by {_BOUNDS.get(bound, bound)})"))
        gap = document["gap"][target]
        rows.append((f"duality gap{of}", "the bounds say nothing" if gap is None else f"{gap:.3g}"))
    return rows


def _rungs(document: Document) -> Rows:
    """The sizes that a basis grew through, and what the exact model would cost and gain."""
    if "ladder" not in document:
        return []
    sizes = ", ".join(f"{rung['size']:,}: {rung['distance']:.3g}" for rung in document["ladder"]["rungs"])
    return [("basis samples: proven distance", sizes), ("beside that", document["ladder"]["exact"]["words"])]


def _evidence(document: Document) -> Rows:
    """Bounds on log p(y), where the method has them."""
    if document["elbo"] is None:
        return []
    bounds = f"{document['elbo']:.8g} to {document['evidence_upper']:.8g} nats"
    return [
        ("log evidence of the exact model", bounds),
        ("KL from the exact posterior", f"at most {document['divergence']:.4g} nats"),
    ]
