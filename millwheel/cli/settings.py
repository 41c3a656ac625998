"""Options from a file: what the environment may set, a TOML file may set as well.

Lives here: reading the file, and what is wrong with it.  Never here: an option; each command declares its own.  Invariant: a
key that sets nothing is an error, because it is mostly a misspelt one, and a setting that has no effect is noticed late.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from millwheel.cli.options import ENVIRONMENT, STORE_OPTIONS

DEFAULT_FILE = "millwheel.toml"
"""Read when it is there and no other file is named."""

VARIABLE = "MILLWHEEL_CONFIG"
"""Names another file."""

OTHERS = ("POSTGRES_USER", STORE_OPTIONS.removeprefix(ENVIRONMENT))
"""What the environment sets besides options."""

PRECEDENCE = f"""\
Every option that names a variable can be set in three places.  The command line wins over the environment, and the
environment over the settings file: --config, or else {DEFAULT_FILE} in the current directory.  A key at the top of the file,
such as store = "postgresql://…", is for every command that has the option.  A table such as [worker] is for one command.\
"""


def read_settings(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """The callback of --config: from now on options that nothing else sets have what the file says."""
    if context.resilient_parsing or not isinstance(context.command, click.Group):
        return path
    if path == "":
        raise click.BadParameter("it is empty; leave the option out, or name a file", context, parameter)
    if path is None and os.environ.get(VARIABLE) == "":
        raise click.BadParameter(f"{VARIABLE} is set and empty; unset it, or name a file", context, parameter)
    file = Path(path or DEFAULT_FILE)
    if path is None and not file.is_file():
        return path
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"the settings file {file} cannot be read: {error.strerror}", context) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the settings file {file} is no TOML: {error}", context) from error
    context.default_map = SettingsFile(file).of_group(context.command, found, {})
    return path


def misspelt(group: click.Group, environment: Iterable[str]) -> Iterator[str]:
    """What to say of variables that set nothing, and are named nearly as one that does.  Others may be the user's own."""
    known = {option.envvar: None for command in _leaves(group) for option in _options(command).values()}
    names = [str(name).removeprefix(ENVIRONMENT) for name in (*known, VARIABLE)]
    for name in sorted(environment):
        mine = name.removeprefix(ENVIRONMENT)
        if mine != name and mine not in (*names, *OTHERS):
            for near in difflib.get_close_matches(mine, names, n=1, cutoff=0.66):
                yield f"the environment variable {name} sets nothing. Did you mean {ENVIRONMENT}{near}?"


class SettingsFile:
    """One file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def of_group(self, group: click.Group, given: Mapping[str, Any], inherited: Mapping[str, Any]) -> dict[str, Any]:
        """Values by command and parameter, as click takes them; `UsageError` for a key that sets nothing."""
        known = {key: option for command in _leaves(group) for key, option in _options(command).items()}
        commands = group.commands
        values = dict(inherited)
        for key, value in given.items():
            if isinstance(value, dict):
                if key not in commands:
                    raise self._wrong(f"[{key}] is no command", key, commands)
            elif key in commands:
                raise self._wrong(f"{key} is a command, and not a setting: write its settings below [{key}]")
            elif key in known:
                values[key] = self._checked(known[key], key, value)
            else:
                raise self._wrong(f"{key} is no setting", key, [*known, *commands])
        return {name: self._of_command(command, given.get(name, {}), values) for name, command in commands.items()}

    def _of_command(
        self, command: click.Command, given: Mapping[str, Any], inherited: Mapping[str, Any]
    ) -> dict[str, Any]:
        if isinstance(command, click.Group):
            return self.of_group(command, given, inherited)
        options = _options(command)
        values = {key: value for key, value in inherited.items() if key in options}
        for key, value in given.items():
            if key not in options:
                raise self._wrong(f"{key} is no setting of [{command.name}]", key, options)
            values[key] = self._checked(options[key], key, value)
        return {options[key].name or key: value for key, value in values.items()}

    def _checked(self, option: click.Option, key: str, value: Any) -> Any:
        """The value, if the option takes it."""
        if option.is_flag:
            if not isinstance(value, bool):
                raise self._wrong(f"{key} is {value!r}, and has to be true or false")
            return value
        if isinstance(value, list) != option.multiple:
            raise self._wrong(f"{key} is {value!r}, and has to be {'a list' if option.multiple else 'one value'}")
        taken, wanted = _taken(option)
        if not all(
            isinstance(one, taken) and not isinstance(one, bool) for one in (value if option.multiple else [value])
        ):
            plain = isinstance(value, int | float) and not isinstance(value, bool) and wanted == "a text"
            example = f': write {key} = "{value}"' if plain else ""
            what = f"a list of {wanted.removeprefix('a ')}s" if option.multiple else wanted
            raise self._wrong(f"{key} is {value!r}, and has to be {what}{example}")
        try:
            option.type_cast_value(click.Context(click.Command(key)), value)
        except click.BadParameter as error:
            raise self._wrong(f"{key}: {error.message}") from error
        if value == "":
            raise self._wrong(f"{key} is empty: leave it out, or give it a value")
        return value

    def _wrong(self, what: str, key: str = "", known: Iterable[str] = ()) -> click.UsageError:
        near = difflib.get_close_matches(key, known, n=1)
        return click.UsageError(
            f"the settings file {self._file}: {what}" + (f". Did you mean {near[0]}?" if near else "")
        )


def _taken(option: click.Option) -> tuple[tuple[type, ...], str]:
    """Types of values that the file may give to an option, and what to call them.  A number may also stand as text."""
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float, str), "a number"
    if isinstance(option.type, click.types.IntParamType):
        return (int, str), "a whole number"
    return (str,), "a text"


def _leaves(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from _leaves(command)
        else:
            yield command


def _options(command: click.Command) -> dict[str, click.Option]:
    """By key: the options that the environment may set."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option) and parameter.envvar]
    return {_key(option): option for option in options}


def _key(option: click.Option) -> str:
    return next(name for name in option.opts if name.startswith("--")).removeprefix("--")
