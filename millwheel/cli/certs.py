"""`millwheel certs`: certificates for the processes of a cluster."""

from __future__ import annotations

import click

from millwheel.cli.extras import of_clusters

ROLES = ("worker", "controller", "client", "injector")


@click.command(short_help="Make a certificate for a process of a cluster.")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the process is.")
@click.option("--host", "hosts", multiple=True, metavar="HOST",
              help="A name or an IP address under which others call it; may be given several times.")  # fmt: skip
@click.option("--name", metavar="NAME", help="The name of the files; the role, if it is not given.")
def certs(directory: str, role: str, hosts: tuple[str, ...], name: str | None) -> None:
    """Make a certificate for a process, of the authority that DIRECTORY keeps.

    A directory without an authority gets one.  Files of the same name are replaced.  A process needs authority.pem, NAME.pem
    and NAME.key; authority.key stays where it is, because whoever has it can be any process.
    """
    with of_clusters():
        from millwheel.transport.certificates import OwnAuthority, keep
        from millwheel.transport.roles import Role

    # An empty text is mostly a shell variable that is not set: nothing else may be taken in its place.
    if not directory.strip():
        raise click.UsageError("DIRECTORY is empty: name the one that keeps the authority")
    if name is not None and not name.strip():
        raise click.UsageError("--name is empty; leave it out, or give a value")
    authority = OwnAuthority.kept_in(directory)
    pem, key = keep(directory, name or role, authority.issue(Role(role), hosts))
    click.echo(f"millwheel: {pem} and {key} (role {role}" + (f", {', '.join(hosts)})" if hosts else ")"))
