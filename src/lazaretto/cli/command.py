"""How commands are declared: groups of them, and several options that a command takes as one parameter."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from lazaretto.cli.commands import COMMANDS, CommandGroup
from lazaretto.cli.exits import usage
from lazaretto.cli.parse import past

Function = Callable[..., None]

#: What reads a value of a type, and what that is called.
_TYPES: dict[type[Any], tuple[Any, str]] = {
    Path: (None, "FILE"),
    datetime: (past, "TIME"),
}


def option(
    text: str,
    metavar: str | None = None,
    *names: str,
    parser: Any = None,
    complete: Any = None,
    panel: str = "",
) -> Any:
    """Return an option. What is not said follows from its parameter: a name, and how it is read.

    `names`: those that it has besides, such as "-n"; a long one stands for that of the parameter.
    `complete`: returns the values that there are. `panel`: the section of the help that it stands in.
    """
    return typer.Option(
        ..., *names, help=text, metavar=metavar or None, parser=parser, autocompletion=complete,
        rich_help_panel=panel or None,
    )  # fmt: skip


def argument(text: str, metavar: str = "", *, parser: Any = None, complete: Any = None) -> Any:
    """Return an argument; see `option`."""
    return typer.Argument(help=text, metavar=metavar, parser=parser, autocompletion=complete)


class Options(NamedTuple):
    """Options, or arguments, that make one parameter of a command.

    `parameters` has the annotation and the default of each. `make` returns the command's parameter from
    the context and what was given. `last`: the help shows them below all others.
    """

    parameters: Mapping[str, tuple[Any, Any]]
    make: Callable[[typer.Context, dict[str, Any]], Any]
    last: bool = False

    @classmethod
    def of(
        cls, kind: type[Any], make: Callable[[typer.Context, dict[str, Any]], Any] | None = None, **how: bool
    ) -> Options:
        """Return the options that a dataclass declares as its annotated fields, inherited ones last.

        They make one of it, if `make` does not.
        """
        own = get_type_hints(kind, include_extras=True)
        names = list(
            dict.fromkeys(name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()))
        )
        fields = kind.__dataclass_fields__
        declared = {
            name: (own[name], ... if fields[name].default is dataclasses.MISSING else fields[name].default)
            for name in names
            if get_origin(own[name]) is Annotated
        }
        return cls(declared, make or (lambda context, given: kind(**given)), **how)

    def with_options(self, **parameters: tuple[Any, Any]) -> Options:
        """Return these options and some more."""
        return self._replace(parameters={**self.parameters, **parameters})


class Group:
    """Commands under one name; without a name, those that stand by themselves."""

    def __init__(self, name: str = "", text: str = "", kind: type[CommandGroup] = CommandGroup) -> None:
        self.program = typer.Typer(
            name=name, cls=kind, help=text or COMMANDS.get(name, ("",))[0], rich_markup_mode=None
        )

    def group(self, name: str, text: str = "", kind: type[CommandGroup] = CommandGroup) -> Group:
        """Return a group of commands within this one; the table of commands says what it is for.

        `kind`: how it reads its arguments.
        """
        inner = Group(name, text, kind)
        self.program.add_typer(inner.program, name=name)
        return inner

    def alone(self, function: Function) -> Function:
        """Declare what the group does where none of its commands is named. Its help is the docstring."""
        run = _runs_alone(function)
        help_ = inspect.cleandoc(function.__doc__ or "")
        self.program.callback(invoke_without_command=True, help=help_, short_help=self.program.info.help)(run)
        return function

    def command(
        self,
        name: str,
        text: str | None = None,
        *,
        also: str | None = None,
        hidden: bool = False,
        **shared: Options,
    ) -> Callable[[Function], Function]:
        """Declare a function as a command. Its help is `text`, or the docstring.

        A parameter annotated with `Options`, or named in `shared`, stands for those options. `also` is
        another name, which works and is not shown; nor is a command that is `hidden`.
        """

        def declare(function: Function) -> Function:
            run = _with_options(function, shared)
            help_ = inspect.cleandoc(text or function.__doc__ or "")
            short = " ".join(help_.partition("\n\n")[0].split())
            for called in filter(None, (name, also)):
                unseen = hidden or called == also
                self.program.command(called, cls=Command, help=help_, short_help=short, hidden=unseen)(run)
            return function

        return declare


def _runs_alone(function: Function) -> Function:
    """Return a group's own function as typer takes it: it runs where no command of the group is named."""
    run = _with_options(function, {})

    def begin(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            run(context, **options)
            return
        for name in options:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                option_ = f"--{name.replace('_', '-')}"
                raise usage(f"{option_} is no option of this command: give its own behind its name")

    begin.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]
    begin.__annotations__ = run.__annotations__
    begin.__module__ = run.__module__
    return begin


#: Options that may stand without a value, and what that means.
BARE = {"--edit": "editor"}


class Command(TyperCommand):
    """A command whose help has a section for each kind of option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was given, after giving options that stand without a value the one that is meant."""
        words: list[str] = []
        for number, arg in enumerate(args):
            words.append(arg)
            following = args[number + 1] if number + 1 < len(args) else "-"
            if arg in BARE and following.startswith("-"):
                words.append(BARE[arg])
        return super().parse_args(ctx, words)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what the first line of the help names, without the braces around what is required."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                own = "Arguments" if parameter.param_type_name == "argument" else "Options"
                title = getattr(parameter, "rich_help_panel", None) or own
                sections.setdefault(title, []).append(record)
        # What every command has comes last.
        sections["Options"] = sections.pop("Options")
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _with_options(function: Function, shared: Mapping[str, Options]) -> Function:
    """Return the function as typer takes it, with every option as a parameter of its own."""
    bundles: dict[str, Options] = {}
    first: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        options = shared.get(name) or _options_of(parameter.annotation)
        if options is None:
            first.append(_keyword(name, parameter.annotation, parameter.default))
        else:
            bundles[name] = options
            made = [_keyword(name, *declared) for name, declared in options.parameters.items()]
            (last if options.last else first).extend(made)
    context = _keyword("context", typer.Context, inspect.Parameter.empty)
    parameters = [context, *first, *last]

    def run(context: typer.Context, **parameters: Any) -> None:
        made = {
            name: options.make(context, {part: parameters.pop(part) for part in options.parameters})
            for name, options in bundles.items()
        }
        function(**made, **parameters)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__module__ = function.__module__
    return run


def _options_of(annotation: Any) -> Options | None:
    return next((part for part in get_args(annotation)[1:] if isinstance(part, Options)), None)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind, *others = get_args(annotation) or (annotation,)
    for declared in others:
        if isinstance(declared, typer.models.ParameterInfo):
            # Other parameters may share the declaration.
            annotation = Annotated[kind, _completed(copy.copy(declared), name, kind, default)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _completed(declared: Any, name: str, kind: Any, default: Any) -> Any:
    """Return a declaration with what follows from its parameter."""
    word = name.strip("_").replace("_", "-")
    parts = [kind, *get_args(kind), *(part for inner in get_args(kind) for part in get_args(inner))]
    typed = next((one for part, one in _TYPES.items() if part in parts), (None, None))
    required = default in (..., inspect.Parameter.empty)
    if isinstance(declared, typer.models.ArgumentInfo):
        shown = word.upper() if required else f"[{word.upper()}]"
        called = f"{shown}..." if any(get_origin(part) is list for part in parts) else shown
    else:
        called = typed[1] or word.upper()
        if not any(part.startswith("--") for part in declared.param_decls or ()):
            declared.param_decls = (f"--{word}", *(declared.param_decls or ()))
    declared.parser = declared.parser or typed[0]
    declared.metavar = declared.metavar or _choices(parts) or (None if kind is bool else called)
    # What nobody need be told stands in the help, if anything does.
    declared.show_default &= not required and default not in (None, "", ())
    return declared


def _choices(kinds: Sequence[Any]) -> str | None:
    """Return what a value is called whose type has a few names to choose from."""
    for kind in kinds:
        if get_origin(kind) is Literal:
            return "|".join(get_args(kind))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return "|".join(str(member.value) for member in kind)
    return None
