"""Seeded damage: bytes that are flipped, cut, put in or swapped, and JSON whose values are not what they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Generator = np.random.Generator

# What readers of text and numbers have stumbled over.
_PIECES = (
    b"\0", b"\x1b[2J", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"nan", b"-inf", b"1e999",
    b"9" * 400, b"-1", b"0x10", b'"', b"'", b"\n\n", b"\r", b",", b";", b"\t", b"[" * 3000, b'{"a":' * 2000, b"\\",
    b"18446744073709551616", b"2147483648", b"1" * 5000, b"../../x", b"${HOME}", b"%s%n", b"null", b"NaN", b"\x7f",
)  # fmt: skip


def _position(rng: Generator, content: bytes | bytearray) -> int:
    return int(rng.integers(len(content) + 1))


def flip_bits(content: bytes, rng: Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 8]))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(content: bytes, rng: Generator) -> bytes:
    return content[: int(rng.integers(len(content)))]


def cut_out(content: bytes, rng: Generator) -> bytes:
    start = _position(rng, content)
    return content[:start] + content[start + int(rng.integers(1, 64)) :]


def put_in(content: bytes, rng: Generator) -> bytes:
    start = _position(rng, content)
    piece = rng.bytes(int(rng.integers(1, 32))) if rng.random() < 0.3 else _PIECES[int(rng.integers(len(_PIECES)))]
    return content[:start] + piece + content[start:]


def put_over(content: bytes, rng: Generator) -> bytes:
    """A piece, or the largest and smallest numbers of a few widths, in place of what was there."""
    start = _position(rng, content)
    numbers = (b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xff" * 7 + b"\x7f")
    choices = (*numbers, *_PIECES)
    piece = choices[int(rng.integers(len(choices)))]
    return content[:start] + piece + content[start + len(piece) :]


def swap(content: bytes, rng: Generator) -> bytes:
    """Two pieces that change their places."""
    size = int(rng.integers(1, max(len(content) // 3, 2)))
    if len(content) < 2 * size:
        return content[::-1]
    first = int(rng.integers(len(content) - 2 * size + 1))
    second = int(rng.integers(first + size, len(content) - size + 1))
    one, other = content[first : first + size], content[second : second + size]
    return content[:first] + other + content[first + size : second] + one + content[second + size :]


def repeat(content: bytes, rng: Generator) -> bytes:
    start, size = _position(rng, content), int(rng.integers(1, 200))
    return content[:start] + content[start : start + size] * int(rng.integers(2, 40)) + content[start + size :]


OF_BYTES: tuple[Callable[[bytes, Generator], bytes], ...] = (
    flip_bits, flip_bits, flip_bits, truncate, cut_out, put_in, put_over, put_over, swap, repeat,
)  # fmt: skip


def damaged(content: bytes, rng: Generator) -> bytes:
    """The content with one to three damages; other bytes than it had."""
    changed = content
    while changed == content:
        for _ in range(int(rng.choice([1, 1, 2, 3]))):
            changed = OF_BYTES[int(rng.integers(len(OF_BYTES)))](changed or b"\0", rng)
    return changed


# --- JSON that is whole, and says something else ----------------------------------------------------------------------


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 10**30, -(10**30), 1e308, -1e308, 5e-324, float("nan"), float("inf"), "",
    "x" * 5000, "1", "\0", "\x1b[2J", "../../etc/passwd", "é\u202e", [], {}, [[]], [None], {"type": "rbf"},
    _deep(200), 0.5, [1, 2, 3], 2**31, 2**63, "rbf", "/dev/zero", [1e400], ["a", "b"],
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    places = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        places += _places(item, (*path, key))
    return places


def changed_json(document: Any, rng: Generator) -> Any:
    """A copy of a JSON document in which one or two values are others, are missing, or are there once more."""
    document = json.loads(json.dumps(document))
    for _ in range(int(rng.choice([1, 1, 2]))):
        places = _places(document)
        if not places:
            return document
        # Deep lists of numbers are most places, and the least interesting.
        depth = rng.integers(1, max(map(len, places)) + 1)
        near = [place for place in places if len(place) <= depth]
        *parents, last = near[int(rng.integers(len(near)))]
        holder = document
        for key in parents:
            holder = holder[key]
        match int(rng.integers(6)):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder["more"] = holder[last]
            case 1:
                holder.append(holder[last])
            case 2 if isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
                holder[last] = holder[last] * float(rng.choice([-1.0, 0.5, 2.0, 1e6, 1e300, 1e-300]))
            case 3 if isinstance(holder[last], int) and not isinstance(holder[last], bool):
                holder[last] += int(rng.choice([-1, 1, 7, 1000, 10**9]))
            case _:
                holder[last] = _VALUES[int(rng.integers(len(_VALUES)))]
    return document
