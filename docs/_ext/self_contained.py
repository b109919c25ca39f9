"""A site that loads anything from elsewhere is not built: no fonts, scripts, styles or pictures of other hosts.

Links for people to follow are something else, and stay.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ELSEWHERE = r"[\"']?(?:https?:)?//"
LOADS = re.compile(
    rf"<(?:script|img|iframe|embed|source|audio|video|object)\b[^>]*?(?:src|srcset|data)={ELSEWHERE}[^\"'> ]*"
    rf"|<link\b(?![^>]*rel=[\"'](?:canonical|author|license))[^>]*?href={ELSEWHERE}[^\"'> ]*"
    rf"|url\({ELSEWHERE}[^\"') ]*"
    rf"|@import\s+(?:url\()?{ELSEWHERE}[^\"'); ]*"
    rf"|(?:\bimport\(|\bfetch\(|importScripts\(|\bfrom\s)\s*[\"'](?:https?:)?//[^\"']*",
    flags=re.IGNORECASE,
)


def loads_from_elsewhere(text: str) -> list[str]:
    """Return the references of a page, style sheet or script to files on other hosts."""
    return LOADS.findall(text)


def check(app: Sphinx, exception: Exception | None) -> None:
    """Look through all that was written."""
    if exception is not None or app.builder.format != "html":
        return
    found = [
        f"{path.relative_to(app.outdir)}: {load}"
        for path in sorted(Path(app.outdir).rglob("*"))
        if path.suffix in (".html", ".css", ".js", ".svg")
        for load in loads_from_elsewhere(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise ExtensionError("The site would load from elsewhere:\n" + "\n".join(found))


def setup(app: Sphinx) -> dict[str, bool]:
    """Check it at the end of every build."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
