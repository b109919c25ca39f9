"""Options of the command line that come from declarations (`dkgp.registry.Option`), made when they are first asked for.

What declares them (formats, cluster kinds, bench sections) is imported then, and not for the help of other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

from dkgp.registry import Option

__all__ = ["DeclaredCommand", "click_option", "click_type", "declared_options"]

F = TypeVar("F", bound=Callable[..., Any])


def click_type(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a type for click that reads text as `read` does, whose `ValueError` says what is wrong."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):  # a default that is a value already
            return value
        try:
            return read(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


def click_option(option: Option) -> click.Option:
    """Return the option as click knows it; its default is shown unless its help says another."""
    type_: Any = option.type if option.type in (str, int, float, bool) else click_type(option.type)
    if option.choices:
        type_ = click.Choice(option.choices)
    elif option.least is not None:
        type_ = click.IntRange(min=option.least)
    flag = option.type is bool
    spellings = option.spellings or (f"--{option.name.replace('_', '-')}",)
    shown = option.default is not None and option.default is not False and "[default:" not in option.help
    return click.Option(
        [*spellings, option.name],
        type=None if flag else type_,
        is_flag=flag,
        default=option.default,
        multiple=option.multiple,
        metavar=option.metavar,
        show_default=shown and not option.multiple,
        help=option.help,
    )


class _Declared(click.Option):
    """Stands in for options that are not made yet."""

    def __init__(self, make: Callable[[], Iterable[click.Parameter]]) -> None:
        super().__init__(["--declared"])
        self.make = make


def declared_options(make: Callable[[], Iterable[click.Parameter]]) -> Callable[[F], F]:
    """Return a decorator for a `DeclaredCommand` that takes, at this place, the options that `make` returns."""

    def decorate(function: F) -> F:
        parameters = cast(Any, function).__dict__.setdefault("__click_params__", [])
        parameters.append(_Declared(make))
        return function

    return decorate


class DeclaredCommand(click.Command):
    """A command some of whose options, and some of whose help, are made when they are first asked for.

    `described` returns values for the names in braces in the help's text. `groups` has headings, and the names of the
    parameters whose options the help shows under each; the others follow under their own. `tables` returns, of the
    parameters, what the help shows after them: headings, and pairs of texts under each.
    """

    def __init__(
        self,
        *arguments: Any,
        described: Callable[[], Mapping[str, str]] | None = None,
        groups: Mapping[str, Collection[str]] | None = None,
        tables: Callable[[Sequence[click.Parameter]], Mapping[str, Sequence[tuple[str, str]]]] | None = None,
        **settings: Any,
    ) -> None:
        self._params: list[click.Parameter] = []
        super().__init__(*arguments, **settings)
        self._described, self._groups, self.tables = described, groups or {}, tables

    @property
    def params(self) -> list[click.Parameter]:
        """All parameters, those that are declared elsewhere in their places."""
        if any(isinstance(each, _Declared) for each in self._params):
            self._params = [
                option for each in self._params for option in (each.make() if isinstance(each, _Declared) else (each,))
            ]
        return self._params

    @params.setter
    def params(self, parameters: list[click.Parameter]) -> None:
        self._params = parameters

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        grouped = {name for names in self._groups.values() for name in names}
        parameters = self.get_params(ctx)
        shown = {each.name: record for each in parameters if (record := each.get_help_record(ctx)) is not None}
        for heading, names in self._groups.items():
            with formatter.section(heading):
                formatter.write_dl([shown[name] for name in names if name in shown])
        rest = [record for name, record in shown.items() if name not in grouped]
        if rest:
            with formatter.section("Options"):
                formatter.write_dl(rest)
        for heading, rows in ({} if self.tables is None else self.tables(self.params)).items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, with what is described elsewhere in its places."""
        if self._described is not None and self.help is not None:
            self.help, self._described = self.help.format(**self._described()), None
        super().format_help_text(ctx, formatter)
