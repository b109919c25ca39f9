"""Small changes of a source file that a test should see: cosmic-ray's, and four that numerical code needs besides.

A site is a place in the code. A sample of a file is drawn of its sites, and at each site one of the changes that are
possible there, so that an operator with many rivals counts no more than a number with two. Both draws follow from a
seed and the file's name and text alone.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

__all__ = ["Mutant", "draw", "sites"]

Position = tuple[int, int]

# What replaces what: within arithmetic, within masks, within comparisons. Any other operator is a TypeError, which
# every test sees.
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow")
_MASKS = ("BitOr", "BitAnd", "BitXor")
_SHIFTS = ("RShift", "LShift")
_COMPARISONS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
_OTHERS = (
    "ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert",
    "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer",
    "ZeroIterationForLoop",
)  # fmt: skip

_NAMES = {
    "min": "max", "minimum": "maximum", "any": "all", "floor": "ceil", "argmin": "argmax", "nanmin": "nanmax",
    "abs": "positive", "sqrt": "square", "exp": "expm1", "log": "log1p",
}  # fmt: skip
_OPPOSITES = {**_NAMES, **{name: other for other, name in _NAMES.items() if other not in {"abs", "sqrt", "exp", "log"}}}
_AUGMENTED = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}


class _OppositeName(Operator):  # type: ignore[misc]
    """`min` becomes `max`, of NumPy and of Python; of `np.abs(x)`, `np.sqrt(x)` remain x and its square."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.type == "name" and node.value in _OPPOSITES:
            after, before = node.get_next_leaf(), node.get_previous_leaf()
            dotted = before is not None and before.value == "."
            # Python has no names for what a number and its square are, NumPy does; methods are `values.min()` and such.
            numpys = dotted and before.get_previous_leaf().value == "np"
            known = numpys if node.value in {"abs", "sqrt"} else dotted or node.value in {"min", "max", "any", "all"}
            if known and after is not None and after.value == "(":
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = _OPPOSITES[node.value]
        return node

    @classmethod
    def examples(cls) -> Iterable[Any]:
        return ()


class _OppositeAssignment(Operator):  # type: ignore[misc]
    """`+=` becomes `-=`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.type == "operator" and node.value in _AUGMENTED:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = _AUGMENTED[node.value]
        return node

    @classmethod
    def examples(cls) -> Iterable[Any]:
        return ()


class _LeaveOut(Operator):  # type: ignore[misc]
    """A call for its effect, `x += y`, `x[i] = y` and `self.x = y` become `pass`: the names that follow still exist."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.parent is None or node.parent.type != "simple_stmt":
            return
        call = node.type == "atom_expr" and node.children[-1].get_code().startswith("(")
        if call or (node.type == "expr_stmt" and self._changes(node)):
            yield node.start_pos, node.end_pos

    @staticmethod
    def _changes(node: Any) -> bool:
        sign = node.children[1]
        if sign.type == "operator" and sign.value == "=":
            return node.children[0].type in {"atom_expr", "power"}
        return sign.type == "operator"

    def mutate(self, node: Any, index: int) -> Any:
        statement = parso.parse("pass").children[0]
        statement.prefix = node.get_first_leaf().prefix
        return statement

    @classmethod
    def examples(cls) -> Iterable[Any]:
        return ()


def _operators() -> dict[str, Operator]:
    pairs = [
        f"{kind}_{one}_{other}"
        for kind, groups in (
            ("ReplaceBinaryOperator", (_ARITHMETIC, _MASKS, _SHIFTS)),
            ("ReplaceComparisonOperator", (_COMPARISONS,)),
        )
        for group in groups
        for one, other in itertools.permutations(group, 2)
    ]
    known = {name: plugins.get_operator(f"core/{name}")() for name in (*pairs, *_OTHERS)}
    return {
        **known,
        "OppositeName": _OppositeName(),
        "OppositeAssignment": _OppositeAssignment(),
        "LeaveOut": _LeaveOut(),
    }


_OPERATORS = _operators()


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes
    ----------
    line, column : int
        Of the site, from 1 and from 0.
    operator : str
        The kind of change.
    lines : range
        Lines of the statement, or of the head of the compound one, that the site is in.
    before, after : str
        The lines that differ, without what indents them.
    source : str
        The whole file, changed.
    """

    line: int
    column: int
    operator: str
    lines: range
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Name of this change in its file."""
        return f"{self.line}:{self.column} {self.operator} {self.after}"


class _Places:
    """Places of a file's code that tests can reach, and the statement of each."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines()
        self._statements: list[tuple[Position, Position, range]] = []
        self._left_out: list[tuple[Position, Position]] = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.stmt):
                self._statements.append((*self._range(node), self._head(node)))
            self._left_out.extend(map(self._range, _unseen(node)))

    def _range(self, node: Any) -> tuple[Position, Position]:
        return self._position(node.lineno, node.col_offset), self._position(node.end_lineno, node.end_col_offset)

    def _position(self, line: int, offset: int) -> Position:
        return line, len(self._lines[line - 1].encode()[:offset].decode())

    @staticmethod
    def _head(node: Any) -> range:
        body = getattr(node, "body", None)
        end = body[0].lineno if body and body[0].lineno > node.lineno else node.end_lineno + 1
        return range(node.lineno, end)

    def seen(self, place: Position) -> bool:
        return not any(start <= place < end for start, end in self._left_out)

    def lines(self, place: Position) -> range:
        around = [(end, head) for start, end, head in self._statements if start <= place < end]
        inner = [head for _, head in around if place[0] in head]
        return min(inner, key=len, default=range(place[0], place[0] + 1))


def _unseen(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that no test should ask for: annotations, decorators, messages, logging, `__all__`, imports."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from node.decorator_list
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield node.returns
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        yield node.annotation
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        yield node
    if isinstance(node, ast.Assign) and any(
        isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets
    ):
        yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        yield node
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name.endswith(("Error", "Warning")) or name.split(".")[0].lower() in {
            "log",
            "logger",
            "logging",
            "warnings",
        }:
            yield node


def sites(source: str) -> dict[Position, list[tuple[str, int]]]:
    """All changes, as operator and the how-many-eth of its occurrences, by the place that they change."""
    places, nodes = _Places(source), list(ast_nodes(parso.parse(source)))
    changes: dict[Position, list[tuple[str, int]]] = defaultdict(list)
    for name, operator in _OPERATORS.items():
        positions = itertools.chain.from_iterable(operator.mutation_positions(node) for node in nodes)
        for occurrence, (start, _) in enumerate(positions):
            if places.seen(start):
                changes[start].append((name, occurrence))
    return dict(sorted(changes.items()))


def draw(name: str, source: str, count: int, seed: int) -> list[Mutant]:
    """Mutants at `count` sites of a file, or at all of them where it has no more, in the order of its lines."""
    random_numbers = random.Random(f"{seed} {name} {source}")
    places, changes = _Places(source), sites(source)
    order = list(changes)
    random_numbers.shuffle(order)
    mutants: list[Mutant] = []
    for place in order:
        if len(mutants) == count:
            break
        operator, occurrence = random_numbers.choice(changes[place])
        changed = mutate_code(source, _OPERATORS[operator], occurrence)
        if changed is not None and _compiles(changed):
            before, after = _difference(source, changed)
            mutants.append(Mutant(*place, operator, places.lines(place), before, after, changed))
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.column))


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _difference(source: str, changed: str) -> tuple[str, str]:
    lines = [*difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")][3:]
    before, after = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return "\n".join(before), "\n".join(after)
