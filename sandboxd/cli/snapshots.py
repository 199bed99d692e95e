"""`snapshot`, `snapshot ls`, `snapshot rm`, `fork`: copies of a workspace, and of a session."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.core import TyperGroup

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import fail, print_json, print_line, print_table
from sandboxd.client import Client
from sandboxd.client.errors import AnswerLost
from sandboxd.errors import NotFound
from sandboxd.models.fork import ForkMemory
from sandboxd.models.snapshot import SnapshotProgress, SnapshotView

_TAKE = "take"


class TakesSnapshots(TyperGroup):
    """A group whose first word may be a session, which then means `take`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [_TAKE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=TakesSnapshots,
    no_args_is_help=True,
    help="Copy a workspace, and begin another sandbox with the copy. `sandboxd snapshot SESSION` takes one.",
)


@app.command(_TAKE)
def take(
    session: Session,
    name: Annotated[str | None, typer.Option(help="A name for people; two snapshots may share one.")] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Copy the workspace of a session's sandbox as it is now. `take` may be left out.

    A running sandbox goes on; what it writes meanwhile waits. The snapshot outlives the sandbox: remove it with
    `sandboxd snapshot rm`.

    Example: sandboxd snapshot demo --name "before the upgrade"
    """
    with connected(daemon, tenant, json) as client:
        taken = _take_with_a_bar(client, session, name) if _shows_a_bar(json) else client.take_snapshot(session, name)
    if json:
        print_json(taken)
    else:
        print_line(taken.id)


@app.command("ls")
def ls(session: Session, tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False) -> None:
    """List the snapshots of a session, oldest first. It need not have a sandbox any more.

    Example: sandboxd snapshot ls demo
    """
    with connected(daemon, tenant, json) as client:
        found = client.list_snapshots(session)
    if json:
        print_json({"items": found})
        return
    rows = [
        (one.id, one.name or "", f"{one.size_bytes}", one.created_at.isoformat(sep=" ", timespec="seconds"))
        for one in found
    ]
    print_table(("snapshot", "name", "bytes", "created"), rows)


@app.command("rm")
def rm(
    session: Session,
    snapshots: Annotated[list[str], typer.Argument(help="The ids of the snapshots.")],
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Remove snapshots. Sandboxes that were made from them are not affected.

    Example: sandboxd snapshot rm demo snap-0123456789abcdef
    """
    with connected(daemon, tenant, json) as client:
        for snapshot in snapshots:
            try:
                client.remove_snapshot(session, snapshot)
            except NotFound as error:
                fail(error, json, next_step=f"`sandboxd snapshot ls {session}` lists the snapshots.")
            if json:
                print_json({"tenant": tenant, "session": session, "snapshot": snapshot, "removed": True})
            else:
                print_line(snapshot)


def fork(
    session: Session,
    new: Annotated[list[str] | None, typer.Argument(help="The new sessions.")] = None,
    count: Annotated[int | None, typer.Option(help="How many new sessions, with made-up names.")] = None,
    memory: Annotated[str, typer.Option(help="copy: they begin with this session's memory. none: without.")] = "copy",
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Make new sessions as copies of this one: the files of its sandbox and its memory. All of them, or none.

    Example: sandboxd fork demo try-1 try-2
    """
    if bool(new) == (count is not None):
        raise typer.BadParameter("name the new sessions, or give --count")
    with connected(daemon, tenant, json) as client:
        made = client.fork(session, new or None, count=count, memory=_parse_memory(memory))
    if json:
        print_json(made)
        return
    for phrase in made.left_out:
        typer.echo(f"Not copied: {phrase}.", err=True)
    for item in made.items:
        print_line(item.session)


def _shows_a_bar(as_json: bool) -> bool:
    return not as_json and sys.stderr.isatty()


def _take_with_a_bar(client: Client, session: str, name: str | None) -> SnapshotView:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("copying"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copy", total=None)
        for item in client.take_snapshot_stream(session, name):
            if not isinstance(item, SnapshotProgress):
                return item
            bar.update(task, completed=item.copied_bytes, total=item.total_bytes or None)
    raise AnswerLost("cannot tell the outcome: the stream ended before the snapshot was ready")


def _parse_memory(text: str) -> ForkMemory:
    match text:
        case "copy" | "none":
            return text
    raise typer.BadParameter("must be copy or none", param_hint="--memory")
