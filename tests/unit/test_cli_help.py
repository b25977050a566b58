"""The help of every command fits 80 columns, in whole sentences, and names nothing that does not exist."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import lazaretto.web
from lazaretto.cli import main
from lazaretto.cli.app import app
from lazaretto.cli.commands import ALIASES, COMMANDS

ROOT = Path(__file__).parents[2]
#: What stands behind a text in brackets, such as a default.
_BRACKETS = re.compile(r"\s*\[[^]]*\]$")
#: A command that a text tells people to run.
_NAMED = re.compile(r"(?:`|\$\(|[:,;] |see |then )lazaretto ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)")
_OPTION = re.compile(r"--[a-z-]+")
_LITERAL = re.compile(r'"([^"\n]*\blazaretto [a-z][^"\n]*)"')


def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and all within it that are shown."""
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "commands") else ():
        inner = command.get_command(None, name)
        if not inner.hidden:
            yield from below(inner, (*path, name))


ALL = dict(below(typer.main.get_command(app), ()))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_and_is_whole(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert "…" not in shown
    assert not re.search(r"<\w+|\{[A-Z]|\[\d*<?=?x[<>]", shown), "a type is shown instead of a name"
    for line in shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines():
        assert line.endswith("."), line


def test_every_limit_is_n() -> None:
    limits = [
        parameter.opts
        for command in ALL.values()
        for parameter in command.params
        if parameter.name == "limit"
    ]
    assert limits
    assert {tuple(sorted(options)) for options in limits} == {("--limit", "-n")}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_text_is_a_sentence(path: tuple[str, ...]) -> None:
    command = ALL[path]
    short = command.short_help or command.help
    assert len(short) < 60 or len(path) == 0
    assert short.endswith("."), short
    assert command.help.rstrip().endswith("."), command.help
    for parameter in command.params:
        text = _BRACKETS.sub("", parameter.help or "")
        assert text.endswith("."), f"{parameter.name}: {parameter.help!r}"
        assert text[0].isupper(), text


def test_the_table_of_commands_says_what_each_says_of_itself() -> None:
    told = {name: ALL[name,].short_help or ALL[name,].help for name in COMMANDS}
    assert told == {name: text for name, (text, _) in COMMANDS.items()}


def is_known(words: str, options: list[str]) -> bool:
    """Return whether words begin with a command that there is, and it has the options."""
    command: Any = ALL[()]
    for word in words.split():
        if hasattr(command, "commands"):
            command = command.get_command(None, ALIASES.get(word, word))
            if command is None:
                return False
    known = {name for parameter in command.params for name in parameter.opts}
    return known | {"--help"} >= set(options)


def unknown_commands(text: str) -> list[str]:
    """Return the commands that a text names and that there are not."""
    named = [
        (found[1], _OPTION.findall(text[found.end() :].partition("`")[0])) for found in _NAMED.finditer(text)
    ]
    return [f"{words} {options}" for words, options in named if not is_known(words, options)]


def test_commands_that_help_and_errors_name_exist() -> None:
    texts = [(" ".join(path), command.help or "") for path, command in ALL.items()]
    for file in (ROOT / "src" / "lazaretto").rglob("*.py"):
        texts += [(file.name, text) for text in _LITERAL.findall(file.read_text("utf-8"))]
    assert len(texts) > 80
    unknown = {where: wrong for where, text in texts if (wrong := unknown_commands(text))}
    assert not unknown
    assert unknown_commands("use `lazaretto dialogs resumes`; `lazaretto queue resume --verdikt drop`")


_TEMPLATES = Path(lazaretto.web.__file__).parent / "console/templates"
_LITERALS = re.compile(r'"([^"]*)"|([a-z_][\w.]*)')
#: What stands for the words of commands in templates that are not written there.
_WORDS = {
    "verb": ("canary", "apply", "pause", "resume", "cancel", "undo"),
    "word": ("open", "close"),
    "typed": ("receive-disabled", "send-disabled"),
    "verdict": ("retry",),
    "condition": ("a = 1",),
    "edit": ("SET a = 1",),
    "tried_on": ("builtins:print",),
    "grant.role.value": ("viewer",),
}


def _calls(text: str) -> Iterator[str]:
    """Yield the arguments of each command line that a template makes."""
    for found in re.finditer(r"\bcli\(", text):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[found.end() : end - 1]


def _values(pieces: str) -> Iterator[list[str]]:
    """Yield what expressions can be, with a 1 for whatever is not written there."""
    named: list[tuple[str, ...]] = []
    for piece in filter(None, pieces.split(",")):
        literal, name = next(iter(_LITERALS.findall(piece)), ("", ""))
        given = "1" if literal.isupper() else literal
        named.append((given,) if literal else _WORDS.get(name, ("1",)))
    yield from (list(values) for values in itertools.product(*named))


def _arguments(call: str) -> Iterator[list[str]]:
    """Yield the command lines that a call can make."""
    parts: list[list[list[str]]] = []
    for part in re.split(r",(?![^\[]*\])", call):
        if part.strip().startswith("*"):
            # Lists that one behind the other are there or not, or of which one is.
            for piece in part.split("+"):
                lists = [found for found in re.findall(r"\[([^\]]*)\]", piece) if found]
                parts.append([values for one in lists for values in _values(one)])
        else:
            parts.append(list(_values(part)))
    for line in itertools.product(*parts):
        yield list(itertools.chain.from_iterable(line))


PRINTED = [
    (template.name, line)
    for template in sorted(_TEMPLATES.glob("*.html"))
    for call in _calls(template.read_text("utf-8"))
    for line in _arguments(call)
]


@pytest.mark.parametrize(("template", "line"), PRINTED, ids=lambda value: str(value)[:60])
def test_each_command_that_the_console_prints_can_be_typed(
    template: str, line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes as far as to look for the store, or to ask whether it may."""
    code = main([*line, "--store", str(tmp_path / "none.db")])
    error = capsys.readouterr().err
    assert code == 0 or "error[store_not_found]" in error or "needs --yes" in error
