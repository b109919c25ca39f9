"""The changes that are made and left out, and that a seed draws the same ones again."""

from __future__ import annotations

from textwrap import dedent

import pytest

pytest.importorskip("cosmic_ray", reason="`make mutants` installs what makes the changes")

from tests.mutants.mutations import draw, sites


def changed(source: str) -> set[str]:
    """All that one line or several become, each change by itself."""
    text = dedent(source)
    return {mutant.after for seed in range(60) for mutant in draw("a.py", text, 99, seed)}


def test_arithmetic_comparisons_and_numbers_change() -> None:
    assert changed("x = a + b\n") == {f"x = a {sign} b" for sign in ("-", "*", "/", "//", "%", "**")}
    assert changed("x = a < b\n") == {f"x = a {sign} b" for sign in ("<=", ">", ">=", "==", "!=")}
    assert {line.replace(" ", "") for line in changed("x = 1\n")} == {"x=0", "x=2"}
    assert changed("x = a & b\n") == {"x = a | b", "x = a ^ b"}
    assert changed("x = a is None\n") == {"x = a is not None"}


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("x = min(a, b)", "x = max(a, b)"),
        ("x = np.maximum(a, b)", "x = np.minimum(a, b)"),
        ("x = done.any()", "x = done.all()"),
        ("x = np.abs(a)", "x = np.positive(a)"),
        ("x = np.sqrt(a)", "x = np.square(a)"),
    ],
)
def test_a_name_becomes_its_opposite(line: str, after: str) -> None:
    assert changed(line + "\n") == {after}


def test_names_without_an_opposite_stay() -> None:
    # `math` has no `square`, Python no `positive`, and what is not called is no function.
    assert changed("x = math.sqrt(a)\ny = abs(a)\nz = min\n") == set()


def test_statements_are_left_out_where_the_names_that_follow_exist() -> None:
    assert changed("x += y\n") == {"x -= y", "pass"}
    assert changed("rows.append(y)\n") == {"pass"}
    assert changed("x[i] = y\n") == {"pass"}
    assert changed("self.x = y\n") == {"pass"}
    assert changed("x = y\n") == set()
    # Indented as it was.
    (mutant,) = draw("a.py", "def f(x, y):\n    x.append(y)\n    return x\n", 9, 0)
    assert mutant.source == "def f(x, y):\n    pass\n    return x\n"


def test_what_no_test_should_ask_for_stays() -> None:
    source = '''
    """1 + 1."""
    from __future__ import annotations

    __all__ = ["a" + "b"]

    if TYPE_CHECKING:
        import c

        D = 1

    @cached_njit(nogil=True)
    def f(x: int | None, *y: float) -> int | None:
        """2 + 2."""
        z: int | None = x
        if z:
            raise ValueError(f"{z + 1}", z - 1)
        assert z
        logger.info("%d", z + 3)
        problem = InputError(z + 4)
        return f"{z + 5}"
    '''
    assert changed(source) == {"if not z:"}


def test_places_are_counted_in_letters_not_in_bytes() -> None:
    # Two bytes each: the message ends before the number, which a count in bytes would have within it.
    assert {after.replace(" ", "") for after in changed('x = f(f"äöü", 1)\n')} == {'x=f(f"äöü",0)', 'x=f(f"äöü",2)'}


def test_lines_are_those_of_the_statement_or_of_its_head() -> None:
    source = dedent("""
    def f(a, b):
        if (
            a < b
        ):
            return g(
                a,
                b * a,
            )
        return b
    """)
    lines = {(mutant.line, mutant.lines) for mutant in draw("a.py", source, 99, 0)}
    assert lines == {(3, range(3, 6)), (4, range(3, 6)), (8, range(6, 10))}


def test_a_draw_is_of_places_and_repeats() -> None:
    source = "".join(f"x{i} = a{i} + {i}\n" for i in range(50))
    assert len(sites(source)) == 100
    first = draw("a.py", source, 10, 0)
    assert first == draw("a.py", source, 10, 0)
    assert len({(mutant.line, mutant.column) for mutant in first}) == 10
    assert [mutant.line for mutant in first] == sorted(mutant.line for mutant in first)
    others = [draw("a.py", source, 10, 1), draw("b.py", source, 10, 0)]
    assert all(other != first for other in others)
    # A larger sample goes on from a smaller one: what has run need not run again.
    assert {mutant.key for mutant in first} < {mutant.key for mutant in draw("a.py", source, 30, 0)}
    assert len(draw("a.py", source, 1000, 0)) == 100


def test_each_mutant_is_one_change_of_the_file() -> None:
    source = "x = a + b\ny = a - b\n"
    for mutant in draw("a.py", source, 9, 3):
        before, after = source.splitlines(), mutant.source.splitlines()
        differing = [number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
        assert differing == [mutant.line]
        assert (mutant.before, mutant.after) == (before[mutant.line - 1], after[mutant.line - 1])
