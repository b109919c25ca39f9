"""Parameters of the command line: declared options in click's form, their headings, and their flags in texts.

Some options are declared elsewhere (formats, cluster kinds, bench sections). They are built at the first use of their
command, and not for the help of other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dkgp.errors import spelled
from dkgp.options import Declared, options_of, read_options
from dkgp.registry import Group, Option

if TYPE_CHECKING:
    from dkgp.cluster import ClusterOptions

F = TypeVar("F", bound=Callable[..., Any])

# Group of the options that most runs use, and group of the options that every command has.
COMMON = Group("Options")
OUTPUT = Group("Output on the terminal", place=3)


def in_flags(text: str, parameters: Iterable[click.Parameter]) -> str:
    """Return the text with parameters in backticks, as in `max_passes`, spelled as their flags or arguments."""
    flags: dict[str, str] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            flag = max(parameter.opts, key=len)
            flags |= {flag.lstrip("-").replace("-", "_"): flag, str(parameter.name): flag}
        elif parameter.name is not None:
            flags.setdefault(parameter.name, parameter.metavar or parameter.name.upper())
    return spelled(text, flags.get)


def with_flags(parameters: list[click.Parameter]) -> list[click.Parameter]:
    """Return the parameters; their helps name each other by their flags."""
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            parameter.help = in_flags(parameter.help or "", parameters)
    return parameters


def wording() -> Callable[[str], str]:
    """Return a function that spells parameters as flags of the running command, and escapes control characters."""
    from dkgp.commands.reporting.progress import printable, typed

    context = click.get_current_context(silent=True)
    parameters = [] if context is None else context.command.params
    # The remaining parameters are those of other commands.
    return lambda text: printable(typed(in_flags(text, parameters)))


def examples(*lines: str) -> str:
    """Return an epilog that shows commands in the form in which users type them."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


class Choice(click.Choice[str]):
    """Choice that suggests the closest match for a wrong value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the choice; raise click's `BadParameter` for any other value."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = get_close_matches(str(value), list(self.choices), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.BadParameter(f"{error.message}{hint}", ctx, param) from None


def click_type(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a type for click that reads text with `read`, and reports its `ValueError` as a wrong value."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):  # a default is already a value
            return value
        try:
            return read(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


def click_option(option: Option) -> click.Option:
    """Return the option in click's form; show its default unless its help states another one."""
    type_: Any = option.type if option.type in (str, int, float, bool) else click_type(option.type)
    if option.choices:
        type_ = Choice(option.choices)
    elif option.least is not None:
        type_ = click.IntRange(min=option.least)
    flag = option.type is bool
    spellings = option.spellings or (f"--{option.name.replace('_', '-')}",)
    shows_default = option.default is not None and option.default is not False and "[default:" not in option.help
    return Headed(
        [*spellings, option.name],
        type=None if flag else type_,
        is_flag=flag,
        default=option.default,
        multiple=option.multiple,
        metavar=option.metavar,
        show_default=shows_default and not option.multiple,
        help=option.help,
        group=option.group,
    )


class Headed(click.Option):
    """An option under a heading of the help, with optional advice for the case that a required option is missing."""

    def __init__(
        self,
        *arguments: Any,
        group: Group | None = None,
        lacking: str | None = None,
        unless: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.group, self.lacking, self.unless = group, lacking, unless

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return the notes at the end of the help; a required option names the flag that replaces it."""
        notes = super().get_help_extra(ctx)
        if self.unless is not None and "required" in notes:
            notes["required"] = f"required without --{self.unless}"
        return notes

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Process the value; accept a missing one if the option `unless` is set, else give the advice `lacking`."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            # Click processes the options that the user set before the others.
            if self.unless is not None and ctx.params.get(self.unless):
                return None
            if self.lacking is None:
                raise
            raise click.MissingParameter(self.lacking, ctx, self) from None


def job_parameter(declared: Declared) -> click.Parameter:
    """Return an option of a job in click's form.

    The value of an option that is not set is None, because the job provides the defaults. Values that are read from
    text are checked but stay text, so that a batch script can repeat them (`dkgp.options.make` converts them).
    """
    option = declared.option
    if option.argument:
        return click.Argument([option.name], nargs=-1 if option.multiple else 1, required=option.required)
    simple = option.type in (str, int, float, bool)
    type_: Any = option.type if simple else _tried(option.type)
    if option.choices:
        type_ = Choice(option.choices)
    flag = option.type is bool
    default = option.shown if option.shown is not None else option.default
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    help_text = option.help
    if not (option.required or "[default:" in help_text or isinstance(default, bool) or default in (None, "", ())):
        help_text += f"  [default: {default}]"
    # For a flag that may be neither set nor unset: click would treat a missing flag as unset.
    is_open = flag and (option.default is None or option.turns_both_ways)
    neither: dict[str, Any] = {"default": None} if is_open else {}
    return Headed(
        [*(option.spellings or (f"--{option.name.replace('_', '-')}",)), option.name],
        type=None if flag else type_,
        is_flag=flag or None,
        required=option.required,
        **neither,
        multiple=option.multiple,
        nargs=option.nargs,
        metavar=option.metavar,
        help=help_text,
        group=option.group,
        lacking=option.lacking,
        unless=None if option.instead is None else option.instead.flag,
    )


def _tried(read: Callable[[str], Any]) -> Callable[[str], str]:
    """Return a type for click that checks that `read` accepts the text, and returns the text."""

    def check(text: str) -> str:
        click_type(read)(text)
        return text

    return check


class _Declared(click.Option):
    """Placeholder for options that are not built yet."""

    def __init__(self, make: Callable[[], Iterable[click.Parameter]]) -> None:
        super().__init__(["--declared"])
        self.make = make


def declared_later(make: Callable[[], Iterable[click.Parameter]]) -> list[click.Parameter]:
    """Return a placeholder, for a `DeclaredCommand`, for the parameters that `make` returns."""
    return [_Declared(make)]


def declared_options(make: Callable[[], Iterable[click.Parameter]]) -> Callable[[F], F]:
    """Return a decorator that adds the options that `make` returns to a `DeclaredCommand`, at this position."""

    def decorate(function: F) -> F:
        parameters = cast(Any, function).__dict__.setdefault("__click_params__", [])
        parameters += declared_later(make)
        return function

    return decorate


class DeclaredCommand(click.Command):
    """A command that builds some of its options, and its help, at their first use.

    `help` and `epilog` may be functions. The help shows the options of a group under its heading, after the options
    without a group and in the order of the groups' `place`. `tables` returns further tables of the help for the given
    parameters: headings, and pairs of texts under each.
    """

    def __init__(
        self,
        *arguments: Any,
        help: str | Callable[[], str] | None = None,
        epilog: str | Callable[[], str] | None = None,
        tables: Callable[[Sequence[click.Parameter]], Mapping[str, Sequence[tuple[str, str]]]] | None = None,
        **settings: Any,
    ) -> None:
        self._params: list[click.Parameter] = []
        self.tables = tables
        super().__init__(*arguments, **settings)
        self._help, self._epilog = help, epilog

    @property
    def help(self) -> str | None:
        """The help."""
        return self._help() if callable(self._help) else self._help

    @help.setter
    def help(self, text: str | None) -> None:
        self._help = text

    @property
    def epilog(self) -> str | None:
        """The text after the options."""
        return self._epilog() if callable(self._epilog) else self._epilog

    @epilog.setter
    def epilog(self, text: str | None) -> None:
        self._epilog = text

    @property
    def params(self) -> list[click.Parameter]:
        """All parameters, in order, including those that are declared elsewhere."""
        if any(isinstance(parameter, _Declared) for parameter in self._params):
            self._params = [
                option
                for parameter in self._params
                for option in (parameter.make() if isinstance(parameter, _Declared) else (parameter,))
            ]
        return self._params

    @params.setter
    def params(self, parameters: list[click.Parameter]) -> None:
        self._params = parameters

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        sections: dict[str, list[tuple[str, str]]] = {COMMON.heading: []}
        places = {COMMON.heading: COMMON.place}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            group = OUTPUT if "--help" in parameter.opts else getattr(parameter, "group", None) or COMMON
            # An argument has no help of its own: the command's help describes it.
            if record is not None and not isinstance(parameter, click.Argument):
                sections.setdefault(group.heading, []).append(record)
                places[group.heading] = group.place
        shown = [(heading, records) for heading, records in sections.items() if records]
        for heading, records in sorted(shown, key=lambda section: places[section[0]]):
            with formatter.section(heading):
                formatter.write_dl(records)
        for heading, rows in ({} if self.tables is None else self.tables(self.params)).items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def cluster_options(function: F) -> F:
    """Add the options of the cluster, on which the work runs; `cluster_from` takes the values."""

    def parameters() -> list[click.Parameter]:
        from dkgp.cluster import ClusterOptions

        return with_flags([job_parameter(Declared(option, ())) for option in options_of(ClusterOptions).values()])

    return declared_options(parameters)(function)


def cluster_from(options: dict[str, Any]) -> ClusterOptions:
    """Take the cluster options out of a command's options; the configuration decides the options that are not set."""
    from dkgp.cluster import ClusterOptions

    fields = options_of(ClusterOptions)
    return configured(read_options(fields, {name: options.pop(option.name) for name, option in fields.items()}))


def configured(values: Mapping[str, Any]) -> ClusterOptions:
    """Return the cluster's options; the configuration decides those that are not set."""
    from dkgp.cluster import configured_options

    return configured_options({**values, **{name: dict(values.get(name, ())) for name in ("settings", "resources")}})
