"""Completion of commands, options and pipelines by the shell.

Lives here: the script for a shell.  Never here: what fits what is typed, which `click` asks the options and arguments.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from millwheel.errors import InvariantError

COMPLETE = "_MILLWHEEL_COMPLETE"
"""A shell sets this variable when it wants completions."""


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(millwheel completion bash)"    in ~/.bashrc
    zsh:  eval "$(millwheel completion zsh)"     in ~/.zshrc
    fish: millwheel completion fish > ~/.config/fish/completions/millwheel.fish
    """
    root = context.find_root()
    found = get_completion_class(shell)
    if found is None:  # click has all three
        raise InvariantError("click completes in each shell of the list")
    click.echo(found(root.command, {}, root.command_path, COMPLETE).source())
