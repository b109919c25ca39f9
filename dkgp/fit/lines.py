"""The commands that a fit stands for, as they are typed: to paste, change and run one by one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dkgp.commands.reporting.documents import Document
from dkgp.data import TableOptions
from dkgp.data.types import joined
from dkgp.fit.job import HYPER, MODEL, PREDICTIONS, TEST, TRAIN, FitJob


def command_lines(job: FitJob, table: TableOptions, ids: Sequence[str], decision: Document) -> list[str]:
    """Return the lines of a fit whose columns became what `table` and `ids` say, and whose model was decided on."""
    train, test, hyper, model, predictions = (job.place(name) for name in (TRAIN, TEST, HYPER, MODEL, PREDICTIONS))
    way, seed = decision["way"], () if job.seed == 0 else ("--seed", str(job.seed))
    lines: list[tuple[str, ...]] = [("ingest", *_ingestion(job, table, ids))]
    predict: tuple[str, ...] = ("predict", model, test, "--out", predictions)
    if way["name"] == "fixed-size":
        lines.append(("classify", train, "--out", model, "--pool", str(way["size"]), *seed))
    else:
        lines.append(("tune", train, "--out", hyper, "--kernel", job.kernel, *seed))
        trained: tuple[str, ...] = (train, "--out", model, "--hyper", hyper)
        if way["name"] == "exact":
            lines.append(("train", *trained, *seed))
        else:
            lines.append(("sparse", *trained, "--basis-size", str(way["size"]), *seed))
        predict = (*predict, "--variance")
        if way["gap"] is not None:
            predict = (*predict, "--variance-gap", f"{way['gap']:g}")
        predict = (*predict, *seed)
    lines += [predict, ("evaluate", predictions, test)]
    return [shlex.join(("dkgp", *line)) for line in lines]


def _ingestion(job: FitJob, table: TableOptions, ids: Sequence[str]) -> list[str]:
    ingestion = job.ingest_job()
    words = [*ingestion.sources, ingestion.out]
    for target in ingestion.targets:
        words += ["--target", target]
    words += _with("labels", ingestion.labels) + _with("weights", ingestion.weights)
    words += _with("noise-column", ingestion.noise_column) + _with("noise-std-column", ingestion.noise_std_column)
    words += _listed("features", ingestion.features or ())
    words += column_words(table, ids)
    words += _with("transform", ingestion.transform)
    words += _with("test-fraction", ingestion.test_fraction) + _with("test-mask", ingestion.test_mask)
    if ingestion.stratify is not None:
        words.append("--stratify" if ingestion.stratify else "--no-stratify")
    words += ["--test-out", str(ingestion.test_out)]
    for name, value in ingestion.options.items():
        words += _format_words(name, value)
    return words + ([] if job.seed == 0 else ["--seed", str(job.seed)])


def column_words(table: TableOptions, ids: Sequence[str]) -> list[str]:
    """Return the options of columns as words of a command line."""
    words = _listed("categorical", table.categorical)
    words += _by_name("ordinal", table.ordinal) + _listed("date", table.dates) + _by_name("cyclic", table.cyclic)
    words += _listed("number", table.numbers) + _with("decimal", table.decimal) + _with("thousands", table.thousands)
    words += _listed("id", ids) + _listed("drop", table.drop) + _listed("missing", table.gap_texts)
    words += _listed("not-missing", table.not_missing)
    return words + (["--drop-missing"] if table.drop_gaps else []) + _with("impute", table.impute)


def _with(name: str, value: Any) -> list[str]:
    return [] if value is None else [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]


def _listed(name: str, texts: Iterable[str]) -> list[str]:
    text = joined(texts)
    return [f"--{name}", text] if text else []


def _by_name(name: str, values: Mapping[str, Iterable[str]]) -> list[str]:
    return [word for key, texts in values.items() for word in (f"--{name}", f"{key}={joined(texts)}")]


def _format_words(name: str, value: Any) -> list[str]:
    """An option of the sources' format; flags and what was not given by their declarations."""
    from dkgp.data.sources.formats import format_options

    option, _ = format_options()[name]
    if value is None or value == option.default or value == ():
        return []
    flag = option.spellings[0] if option.spellings else f"--{name.replace('_', '-')}"
    if option.type is bool:
        on, _, off = flag.partition("/")
        return [on if value else off or on]
    return [word for each in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(each))]
