"""What several commands take: the pipeline, its store, a key.

Lives here: declarations, and what is wrong with a value whatever the command.  Every option can be set from the
environment as well: MILLWHEEL_ and its name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

import click

from millwheel.escapes import unescaped
from millwheel.limits import CACHE_SMALLEST_BYTES
from millwheel.wording import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from millwheel.api.pipeline import Pipeline
    from millwheel.committed import Committed
    from millwheel.launch import StoreLoss
    from millwheel.overview import ClusterOffice

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_DATA = ".millwheel"
ENVIRONMENT = "MILLWHEEL_"
"""How the name of every variable begins."""

STORE_OPTIONS = f"{ENVIRONMENT}STORE_OPTIONS"
"""By this variable `up` tells its processes the options of the user, who may have given no URL."""

KEY_HELP = "as keys are shown: \\\\ for a backslash, \\t, \\n, \\x00, \\x1b, \\u202e for what cannot be printed"


class Place(NamedTuple):
    """A pipeline, and where its store is."""

    path: str
    store: str | None
    data: str
    told: bool = False
    """Whether other commands have to be told `data` as well: they do not find it by themselves."""

    def options(self) -> list[str]:
        """By which a command finds the store that the user means; a URL may hold a password and is not repeated."""
        if (told := os.environ.get(STORE_OPTIONS)) is not None:
            return shlex.split(told)
        return ["--store", "URL"] if self.store else ["--data", self.data] if self.told else []

    def pipeline(self) -> Pipeline:
        """The pipeline, imported."""
        from millwheel.launch import import_pipeline

        return import_pipeline(self.path)

    def opened(self, loss: StoreLoss | None = None) -> AbstractContextManager[str]:
        """The URL of its store; an embedded Postgres is made and kept running meanwhile, and `loss` hears if it goes."""
        from millwheel.launch import open_store

        return open_store(self.store, self.data, loss=loss)

    def committed(self) -> Committed:
        """Its committed state; a context manager."""
        from millwheel.committed import Committed

        return Committed(self.pipeline(), self.store, self.data)

    def office(self) -> ClusterOffice:
        """Its cluster; a context manager."""
        from millwheel.overview import ClusterOffice

        return ClusterOffice(self.pipeline(), self.store, self.data)


def variable(name: str) -> str:
    """The environment variable of the option `name`.

    >>> variable("--allow-rejected")
    'MILLWHEEL_ALLOW_REJECTED'
    """
    return ENVIRONMENT + name.strip("-").replace("-", "_").upper()


def option(*names: str, **settings: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """An option that the environment may set, too; the help says so."""
    long = next(name for name in names if name.startswith("--"))
    return click.option(*names, envvar=variable(long.partition("/")[0]), show_envvar=True, callback=_given, **settings)


def allowances(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command --allow-quarantine and --allow-rejected."""
    count = click.IntRange(min=0)
    for added in (
        option("--allow-rejected", type=count, metavar="N",
               help="End with status 0 when up to N rows are rejected; stop at more."),
        option("--allow-quarantine", type=count, metavar="N",
               help="End with status 0 when up to N keys are in quarantine; stop when the run puts more there."),
    ):  # fmt: skip
        function = added(function)
    return function


def place(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command PIPELINE, --store and --data; its function gets a `Place` first."""

    @option("--data", default=DEFAULT_DATA, show_default=True, metavar="DIRECTORY",
            help="Where the embedded Postgres lives.")  # fmt: skip
    @option("--store", metavar="URL", help="postgresql:// URL; without it an embedded Postgres.")
    @click.argument("pipeline", shell_complete=_pipelines)
    @wraps(function)
    def command(pipeline: str, store: str | None, data: str, **rest: Any) -> R:
        context = click.get_current_context()
        _check_one_store(context)
        return function(Place(pipeline, store, data, _was_told(context)), **rest)

    return command


def _given(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """An empty text is a mistake, mostly a shell variable that is not set: nothing else may be taken in its place."""
    name = variable(parameter.name or "")
    if isinstance(value, str) and not value.strip():
        raise click.BadParameter("it is empty; leave the option out, or give a value", context, parameter)
    given = context.get_parameter_source(parameter.name or "")
    if os.environ.get(name) == "" and given is not click.core.ParameterSource.COMMANDLINE:
        raise click.BadParameter(f"{name} is set and empty; unset it, or give it a value", context, parameter)
    return value


def _check_one_store(context: click.Context) -> None:
    """Whoever says --data on the command line wants that place, and --store, wherever it is said, would win over it."""
    said = context.get_parameter_source("data") is click.core.ParameterSource.COMMANDLINE
    if said and context.params.get("store") is not None:
        raise click.BadParameter(
            "--store names another place, a Postgres of your own: give one of the two", context, param_hint="'--data'"
        )


def _was_told(context: click.Context) -> bool:
    """Whether this command line says where the data is, by --data or by the settings file that it names."""
    said, by_file = click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.DEFAULT_MAP
    found = context.get_parameter_source("data")
    return found is said or (found is by_file and context.find_root().get_parameter_source("config") is said)


def _pipelines(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    from millwheel.cli.declared import pipelines

    return pipelines(begun)


class Size(click.ParamType[int]):
    """A number of bytes, with a unit.

    >>> Size().convert("1.5GiB", None, None)
    1610612736
    """

    name = "size"

    def __init__(self, least_bytes: int = 1) -> None:
        self._least_bytes = least_bytes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes.  512, 512M, 512MB and 512MiB are the same but for the first one."""
        found = value if isinstance(value, int) else self._bytes(value)
        if not found:
            self.fail(f"{value!r} is no size: write 512MiB or 2GiB, for example", param, ctx)
        if found < self._least_bytes:
            self.fail(
                f"{value!r} is {counted(found, 'byte')}, and less than {self._least_bytes >> 20} MiB is of no use: write "
                "512MiB or 2GiB, for example",
                param,
                ctx,
            )
        return found

    def _bytes(self, text: str) -> int:
        """0 for what is no size."""
        said = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
        return round(float(said[1]) * 1024 ** " KMGT".index(said[2].upper() or " ")) if said else 0


CACHE_SIZE: Final = Size(CACHE_SMALLEST_BYTES)

cache: Final = option(
    "--cache", type=CACHE_SIZE, metavar="SIZE",
    help="Memory for state of keys, 2GiB for example; a quarter of what the process may use, if not given.",
)  # fmt: skip
"""The option of a command that runs hooks."""


class Key(click.ParamType[str]):
    """A key in the notation in which keys are shown (`millwheel.escapes`)."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The key itself; `WiringError` for what is not the notation."""
        return unescaped(value)


KEY = Key()
