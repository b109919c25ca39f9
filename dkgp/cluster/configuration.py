"""Cluster options from dask's configuration: its files, environment variables, and a file named on the command line.

Explicit options win over that file, and the file over the rest of dask's configuration. Where an option names another
cluster than the configured one, the configured settings are ignored: a queue's name means nothing to processes here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dkgp.cluster.options import ClusterOptions, nearest
from dkgp.errors import InputError, UsageError
from dkgp.registry import LaterModule

dask: Any = LaterModule("dask")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number")
    return value


def _seconds(value: Any) -> float:
    try:
        return float(dask.utils.parse_timedelta(value))
    except (TypeError, ValueError, KeyError, AttributeError):
        raise ValueError("seconds, or text such as '10 minutes'") from None


def _bytes(value: Any) -> int:
    try:
        return int(dask.utils.parse_bytes(value))
    except (TypeError, ValueError, AttributeError):
        raise ValueError("a size such as 4GiB") from None


def _tiles(value: Any) -> int | str:
    return value if value == "auto" else 0 if value == "none" else _bytes(value)


def _limits(value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("the two numbers [MIN, MAX]")
    return _count(value[0]), _count(value[1])


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of names to values")
    return {str(name): item for name, item in value.items()}


def _amounts(value: Any) -> dict[str, float]:
    amounts = _mapping(value)
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in amounts.values()):
        raise ValueError("a mapping of names to amounts, such as {dkgp: 1}")
    return {name: float(each) for name, each in amounts.items()}


# Key under `dkgp.cluster`: the field of `ClusterOptions` and how its value is read.
_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "kind": ("kind", _text),
    "scheduler": ("scheduler", _text),
    "scheduler-file": ("scheduler_file", _text),
    "workers": ("workers", _count),
    "adaptive": ("adaptive", _limits),
    "threads-per-worker": ("threads_per_worker", _count),
    "worker-memory": ("worker_memory_bytes", _bytes),
    "cache-tiles": ("cache_tiles", _tiles),
    "worker-wait": ("worker_wait_seconds", _seconds),
    "round-deadline": ("round_deadline_seconds", _seconds),
    "tls-ca": ("tls_ca", _text),
    "tls-cert": ("tls_cert", _text),
    "tls-key": ("tls_key", _text),
    "plain-text": ("plain_text", _flag),
    "performance-report": ("performance_report", _text),
    "resources": ("resources", _amounts),
    "settings": ("settings", _mapping),
}
CONFIGURATION_KEYS = tuple(_FIELDS)

# Sections of the packages that read dask's configuration.
_DASK_SECTIONS = {"array", "dataframe", "distributed", "gateway", "jobqueue", "kubernetes", "scheduler-address", "ssh"}

_WHERE = ("scheduler", "scheduler_file", "kind")
_CERTIFICATES = ("tls_ca", "tls_cert", "tls_key")
_SECURITY = (*_CERTIFICATES, "plain_text")


def configured_options(explicit: Mapping[str, Any]) -> ClusterOptions:
    """Return the explicit options (fields of `ClusterOptions`; None means not given), over those configured.

    Raises
    ------
    UsageError
        A key that does not exist, a value of the wrong type, or options that contradict each other.
    InputError
        The configuration file is missing or no YAML.
    """
    options = {
        name: value for name, value in explicit.items() if value is not None and value is not False and value != {}
    }
    configured = _configured(options.get("config_file"))
    where = [name for name in _WHERE if name in options]
    if where:
        same_kind = (
            where == ["kind"] and options["kind"] == configured.get("kind") and not configured.keys() & set(_WHERE[:2])
        )
        if not same_kind:
            configured = {name: configured[name] for name in _CERTIFICATES if name in configured}
    for one, other in (("workers", "adaptive"), ("adaptive", "workers")):
        if one in options:
            configured.pop(other, None)
    if any(name in options for name in _SECURITY):
        configured = {name: value for name, value in configured.items() if name not in _SECURITY}
    merged = {**configured, **options}
    if "settings" in options:
        merged["settings"] = {**configured.get("settings", {}), **options["settings"]}
    return ClusterOptions(**merged)


def configured_resources() -> dict[str, float]:
    """Return the resources that dask's configuration names for each task, for clients that a caller brings."""
    resources: dict[str, float] = _configured(None).get("resources", {})
    return resources


def _configured(config_file: str | None) -> dict[str, Any]:
    """Return the fields that are configured; where the same key has two spellings, the file's counts."""
    sections: list[tuple[str, Any]] = [("dask's configuration", dask.config.get("dkgp", None))]
    if config_file is not None:
        content = read_config_file(config_file)
        _require_use(config_file, content)
        sections.append((f"'{config_file}'", content.get("dkgp")))
    fields: dict[str, Any] = {}
    for source, section in sections:
        keys = _section(
            _section(section, ("cluster",), "dkgp", source).get("cluster"), CONFIGURATION_KEYS, "dkgp.cluster", source
        )
        for key, value in keys.items():
            name, read = _FIELDS[key]
            if value is None:
                continue
            try:
                fields[name] = read(value)
            except ValueError as expected:
                shown = f"{value!r}" if key != "settings" else f"a {type(value).__name__}"
                raise UsageError(f"dkgp.cluster.{key} in {source} must be {expected}; got {shown}") from None
    return fields


def _require_use(path: str, content: Mapping[str, Any]) -> None:
    """Refuse a file that says nothing about the cluster, nor anything that dask's packages read; `InputError`."""
    section = content.get("dkgp")
    says = isinstance(section, Mapping) and section.get("cluster") is not None
    if says or (section is not None and not isinstance(section, Mapping)) or {*content} & _DASK_SECTIONS:
        return
    if isinstance(section, Mapping) and {*section} - {"cluster"}:
        return  # an unknown key, which is told by its name
    keys = ", ".join(sorted(map(str, content))) or "nothing"
    raise InputError(
        f"`config_file`: '{path}' has no section dkgp.cluster, which would say where the work runs; it holds {keys}. "
        "Write the options below it, such as dkgp: {cluster: {kind: slurm, workers: 4}}"
    )


def _section(content: Any, known: tuple[str, ...], name: str, source: str) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise UsageError(f"{name} in {source} must be a mapping with the keys {', '.join(known)}; got {content!r}")
    section = {str(key).replace("_", "-"): value for key, value in content.items()}
    for key in section:
        if key not in known:
            raise UsageError(f"unknown key {name}.{key} in {source}{nearest(key, known)}. Known: {', '.join(known)}")
    return section


def read_config_file(path: str) -> dict[str, Any]:
    """Read a YAML file of dask's configuration; `InputError` where there is none, or it is no YAML mapping."""
    try:
        Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"`config_file`: there is no file '{path}'") from None
    except OSError as error:
        raise InputError(f"`config_file`: '{path}' cannot be read: {error}") from None
    try:
        content: Any = next(iter(dask.config.collect_yaml([path])), None)
    except ValueError as error:
        # dask shows the lines in question, in which a password may stand.
        where = re.search(r"line \d+", str(error))
        line = "" if where is None else f", see {where[0]}"
        raise InputError(f"`config_file`: '{path}' holds no YAML mapping{line}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"`config_file`: '{path}' must hold a mapping, such as dkgp: {{cluster: {{kind: slurm}}}}")
    return content


def set_config_file(path: str) -> AbstractContextManager[Any]:
    """Return a context in which the file's keys are added to dask's configuration."""
    context: AbstractContextManager[Any] = dask.config.set(dict(_leaves(read_config_file(path))))
    return context


def _leaves(section: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Cut nested mappings into dotted keys: a mapping set as a whole would replace all that is beside it."""
    leaves = []
    for key, value in section.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value and name != "dkgp":
            leaves += _leaves(value, f"{name}.")
        elif name != "dkgp":  # read when the options are put together
            leaves.append((name, value))
    return leaves
