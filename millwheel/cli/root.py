"""The command `millwheel` itself: the list of its commands.

To add a command, write a module with a `click` command in it and name it in `COMMANDS`.
"""

from __future__ import annotations

import os

import click

from millwheel import __version__
from millwheel.cli.certs import certs
from millwheel.cli.check import check
from millwheel.cli.completion import completion
from millwheel.cli.interval import interval
from millwheel.cli.options import STORE_OPTIONS
from millwheel.cli.overview import status
from millwheel.cli.quarantine import quarantine
from millwheel.cli.reset import reset
from millwheel.cli.roles import roles
from millwheel.cli.run import run
from millwheel.cli.savepoint import savepoint
from millwheel.cli.serve import controller, worker
from millwheel.cli.settings import DEFAULT_FILE, PRECEDENCE, misspelt, read_settings
from millwheel.cli.source import source
from millwheel.cli.sql import sql
from millwheel.cli.state import state
from millwheel.cli.tail import tail
from millwheel.cli.up import up
from millwheel.cli.views import explain, rows
from millwheel.escapes import harmless
from millwheel.forms import compiled

COMMANDS = (
    run,
    up,
    worker,
    controller,
    status,
    interval,
    check,
    state,
    tail,
    explain,
    quarantine,
    source,
    rows,
    sql,
    savepoint,
    reset,
    roles,
    certs,
    completion,
)
"""In the order in which `--help` shows them."""


class InOrder(click.Group):
    """Commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(self.commands)


@click.group(
    cls=InOrder, epilog=PRECEDENCE, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--config", envvar="MILLWHEEL_CONFIG", show_envvar=True, metavar="FILE", is_eager=True, expose_value=False,
              callback=read_settings, help=f"TOML file of settings; {DEFAULT_FILE} here, if there is one.")  # fmt: skip
@click.version_option(f"{__version__}{', compiled' if compiled() else ''}", message="%(prog)s %(version)s")
@click.pass_context
def root(context: click.Context) -> None:
    """Exactly-once keyed stream processing on Postgres.

    PIPELINE is module:attribute, for example wordcount:pipeline, imported from the current directory.
    """
    # `up` has said it for its processes.
    if STORE_OPTIONS not in os.environ and isinstance(context.command, click.Group):
        for line in misspelt(context.command, os.environ):
            click.echo(f"millwheel: {harmless(line)}", err=True)


for command in COMMANDS:
    root.add_command(command)
