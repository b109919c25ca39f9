"""Docstrings as they are written: plain text with code in single backticks, which link to what is public.

An object is documented where a package exports it (`dkgp.kernels.Kernel`) and may be mentioned by where it is defined
(`dkgp.kernels.base.Kernel`), or by its bare name. What names nothing public stays code; a dotted name of dkgp that does
not exist at all is left to Sphinx, which warns.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)

# What reStructuredText would take for markup: |g|, names that end in an underscore.
MARKUP = re.compile(r"(?<!\\)(\||(?<=\w)_(?!\w))")


def keep_characters(_app: Sphinx, what: str, _name: str, described: Any, _options: Any, lines: list[str]) -> None:
    """Escape them, but not in code. Say of an exception what else it is, and nothing of a value but the value."""
    if what == "data":  # the docstring is its class's
        lines.clear()
    for index, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`+[^`]*`+)", line)
            lines[index] = "".join(part if place % 2 else MARKUP.sub(r"\\\1", part) for place, part in enumerate(parts))
    if what == "exception":
        lines += ["", "Is a " + ", ".join(f"`{base.__name__}`" for base in described.__bases__) + "."]


def look_up(name: str) -> Any:
    """Import what a dotted name stands for; AttributeError or ImportError where it stands for nothing."""
    parts = name.split(".")
    module, depth = importlib.import_module(parts[0]), 1
    while depth < len(parts) and not hasattr(module, parts[depth]):
        module, depth = importlib.import_module(".".join(parts[: depth + 1])), depth + 1
    found: Any = module
    for part in parts[depth:]:
        found = getattr(found, part)
    return found


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: nodes.Element) -> nodes.Element | None:
    """Link what an unresolved name of Python means, or leave it as code."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    domain = env.domains.python_domain
    if target.startswith("dkgp."):
        try:
            found = look_up(target)
        except (AttributeError, ImportError):
            return None
        names = [name for name in domain.objects if name.endswith(f".{target.rpartition('.')[2]}")]
        for name in names:
            if look_up(name) is found:
                return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contents)
    return contents


def check_complete(_app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names that no page describes; of what a package's `__all__` names none may be missing."""
    described = env.domains.python_domain.objects
    for package in [name for name, entry in described.items() if entry.objtype == "module"]:
        for name in importlib.import_module(package).__all__:
            if f"{package}.{name}" not in described:
                LOGGER.warning("%s.%s is public, and no page describes it", package, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Come before napoleon, and stand in where Sphinx finds nothing."""
    app.connect("autodoc-process-docstring", keep_characters, priority=100)
    app.connect("missing-reference", resolve)
    app.connect("env-check-consistency", check_complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
