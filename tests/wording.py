"""Count indirect words in the comments and docstrings of dkgp, room by room, and compare the counts with their limits.

    python -m tests.wording               print every room's count and limit
    python -m tests.wording data/sources  print the lines of a room that count
    python -m tests.wording --write       lower the limits to the counts

A room is a layer of dkgp, or a folder directly below one. Pronouns that stand for a noun count ("what", "whatever",
"that which", ...), and so do docstrings that open with "Of", "The same" or a question word. Name the thing instead.
Messages, help and labels (all other strings of more than one word) count too, with the words of `MESSAGE` as well: a
sentence that needs a second reading is rewritten, not listed. They have no limit: `messages()` must be empty.

A limit in `wording.toml` is at most `SLACK` above its room's count. Each limit has a paragraph of its own in that file,
so that changes of different rooms do not conflict.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "dkgp"
LIMITS = Path(__file__).with_name("wording.toml")
SLACK = 25
INDIRECT = re.compile(
    r"\b(?:what|whatever|whoever|whichever|whomever|that which|those which|of which|as may be|all there is)\b",
    flags=re.IGNORECASE,
)
# Words of a message that leave out its subject, or refer to nothing.
MESSAGE = re.compile(
    INDIRECT.pattern
    + r"|\b(?:ha[sd]|have|is|are) to be (?:said|told|seen|had)\b|\bsomething to\b|\bholds? all the same\b|\btells? of\b"
    + r"|\btold of\b|\bforeseen?\b|\bso many\b|\bso much\b|\b(?:some|any|no)body\b|\bas it stands\b|\btaken is\b"
    + r"|\bone that (?:waits|runs)\b|\b(?:not|only) one that is\b|\bthe least of\b|\bof use\b|\banew\b|\bbut for\b"
    + r"|\b(?:was|were|is|are|as) asked for\b|\blook(?:ed|ing)? after\b|\bhas no word\b|\bmeans nothing\b"
    + r"|\b(?:nats|bytes|nodes|numbers|samples|rows?|values?|columns?) an? "
    + r"(?:batch|chunk|place|point|round|row|sample|second|side|target)\b",
    flags=re.IGNORECASE,
)
OPENING = re.compile(r"(?:Of|As of|The same|What|How|That|Those|Where|When|Which|Who|Why)\b")
QUOTED_OPENING = re.compile(rf"[\"']{OPENING.pattern}")
Places = dict[str, list[str]]


def places_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each indirect word of a module, once for each word."""
    if not INDIRECT.search(text) and not QUOTED_OPENING.search(text):
        return  # tokens and a syntax tree of all modules take seconds
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], token.string) for _ in INDIRECT.findall(token.string))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                first = node.body[0].lineno
                lines = docstring.splitlines()
                yield from ((first + at, line.strip()) for at, line in enumerate(lines) for _ in INDIRECT.findall(line))
                # An opening "What" counts once.
                if OPENING.match(docstring) and not INDIRECT.match(docstring):
                    yield first, lines[0].strip()


def messages_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each string of a module that has a word of `MESSAGE`; no docstrings."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if " " in node.value.strip() and MESSAGE.search(node.value):
            yield node.lineno, " ".join(node.value.split())


def messages() -> list[str]:
    """Return the messages of dkgp that need a second reading."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [f"{path}:{line}: {text}" for path in paths for line, text in messages_in(path.read_text())]


def places() -> Places:
    """Return the places of indirect words by room."""
    result: Places = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        *folders, name = path.relative_to(PACKAGE).parts
        room = "/".join(folders[:2]) or name.removesuffix(".py")
        lines = [f"{path}:{number}: {line}" for number, line in places_in(path.read_text())]
        if lines:
            result.setdefault(room, []).extend(lines)
    return result


def limits() -> Counter[str]:
    """Return the limit of each room; a room that is not in the file may have none of these words."""
    return Counter({room: entry["limit"] for room, entry in tomllib.loads(LIMITS.read_text()).items()})


def counts() -> Counter[str]:
    """Return the number of indirect words by room."""
    return Counter({room: len(lines) for room, lines in places().items()})


def write(numbers: Counter[str]) -> None:
    """Set the limits to the counts: text may move between rooms, but their sum never rises."""
    if numbers.total() > limits().total():
        raise SystemExit(
            f"{numbers.total()} indirect words, but the limits add up to {limits().total()}: rewrite some first"
        )
    LIMITS.write_text("\n".join(f'["{room}"]\nlimit = {count}\n' for room, count in sorted(numbers.items())))


def main(arguments: list[str]) -> None:
    """Print counts and limits, or the lines of the rooms named, or write the limits."""
    numbers, allowed = counts(), limits()
    if arguments == ["--write"]:
        write(numbers)
    elif arguments:
        by_room = places()
        print(*(line for room in arguments for line in by_room.get(room, [])), sep="\n")
    else:
        for room in sorted(numbers.keys() | allowed.keys()):
            print(f"{room:30} {numbers[room]:5} of at most {allowed[room]:5}")
        print(f"{'indirect words':30} {numbers.total():5} of at most {allowed.total():5}")


if __name__ == "__main__":
    main(sys.argv[1:])
