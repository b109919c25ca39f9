"""A reader of pages that sees what is not closed, fetched from elsewhere, run, or named twice."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# Within the page itself.
INLINE = ("href=#", "href=data:image/png;base64,")
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Checks that every tag is closed in its place; collects what a page fetches, runs and names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.misplaced: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.identifiers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data") or name.startswith("on"):
                self.references.append(f"{name}={value}")
            if name == "id":
                self.identifiers.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.misplaced.append(tag)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def check_page(page: str) -> None:
    reader = read(page)
    assert reader.open == []
    assert reader.misplaced == []
    assert "script" not in reader.tags
    assert [each for each in reader.references if not each.startswith(INLINE)] == []
    assert re.findall(r"https?:|@import|url\((?!#)", page) == []
    assert len(reader.identifiers) == len(set(reader.identifiers))
