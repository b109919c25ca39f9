"""Panels of stores, for notebooks: `dkgp.html` makes HTML of them."""

from __future__ import annotations

from typing import Any

from dkgp.html import Section

Panel = tuple[str, list[Section]]

# Of a model's description, what has sections of its own, or is for programs.
_ELSEWHERE = ("feature_names", "target_names", "standardisation", "history", "certificate", "summary", "versions")


def dataset_panel(dataset: Any) -> Panel:
    """Samples, features with mean and deviation, targets, and what else a `Dataset` knows of its rows."""
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    to = dataset.standardisation
    means, spreads = to.input_mean.tolist(), to.input_std.tolist()
    features = list(zip(dataset.feature_names, means, spreads, strict=True))
    dropped = [name for name in dataset.raw_feature_names if name not in set(dataset.feature_names)]
    if dataset.classes is not None:
        counts = dataset.class_counts or ("",) * len(dataset.classes)
        labels = list(zip(dataset.classes, counts, strict=True))
        targets = Section(f"Classes of {dataset.target_names[0]}", labels, ("class", "samples"), opened=True)
    else:
        columns: list[Any] = [dataset.target_names, to.target_mean.tolist(), to.target_std.tolist()]
        heads = ["target", "mean", "deviation"]
        if to.transforms:
            columns.append([of.name for of in to.transforms])
            heads.append("transform")
        targets = Section("Targets", list(zip(*columns, strict=True)), heads, opened=True)
    about = {
        "place": dataset.url,
        "constant features, left out": dropped or None,
        "ids": list(dataset.id_names) or None,
        "weights": dataset.weight_name,
        "known noise": dataset.noise_name,
        "text, dates and gaps": dataset.encoding,
        "chunks": f"{len(dataset.row_chunks()):,} of {dataset.chunk_rows:,} rows",
        "bytes in memory": dataset.n_bytes,
        "fingerprint": dataset.fingerprint,
    }
    line = f"{n:,} samples, {d:,} features, {p:,} target{'' if p == 1 else 's'}"
    found = Section("Features", features, ("feature", "mean", "deviation"), opened=d <= 10)
    return line, [targets, found, Section.of("About", about)]


def prediction_panel(prediction: Any) -> Panel:
    """Targets and variables of a `Prediction`, and the model that they are by."""
    classes = None if prediction.classes is None else list(prediction.classes)
    facts = {"targets": list(prediction.target_names), "classes": classes, "variables": list(prediction.variables)}
    about = {"place": prediction.url, "chunk rows": prediction.chunk_rows, **prediction.attributes}
    sections = [Section.of("Predicted", facts, opened=True), Section.of("About", about)]
    return f"{prediction.n_samples:,} samples", sections


def model_panel(record: Any) -> Panel:
    """Kernel and noise of a `TrainedRecord`, its training, and what is proven."""
    facts = {
        "features": list(record.feature_names),
        "targets": list(record.target_names),
        **{name: value for name, value in record.described().items() if name not in _ELSEWHERE},
    }
    training = {name: value for name, value in record.summary.items() if name not in ("estimator", "warnings")}
    names = "', '".join(record.target_names)
    return f"of '{names}', {record.n_features:,} features", [
        Section.of("Model", {"place": "in memory" if "memory://" in record.url else record.url, **facts}, opened=True),
        Section.of("Training", training),
        Section.of("Proven", dict(getattr(record, "certificate", {}) or {})),
        Section.of("Versions", dict(record.versions)),
    ]
