"""`memo`: the documents of a session or a user, read and written from outside the sandbox."""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.memo_edit import edit
from sandboxd.cli.memo_files import export_all, import_all
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import print_json, print_line, print_table
from sandboxd.cli.place import (
    Actor,
    File,
    Reason,
    User,
    Words,
    find_place,
    print_text,
    print_written,
    read_input,
)
from sandboxd.models.document import Revision

app = typer.Typer(
    no_args_is_help=True,
    help="Memory: the documents of a session, or with --user of a user.\n\n"
    "A name is a path of up to eight segments, such as memories/projects/x.md.\n\n"
    "Example: sandboxd memo cat demo NOTES.md    or    sandboxd memo cat --user alice USER.md",
)


@app.command("ls")
def ls(
    words: Annotated[list[str] | None, typer.Argument(metavar="[SESSION]", help="Leave it out with --user.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Only documents whose names start with this, such as memories/.")
    ] = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """List the documents.

    Example: sandboxd memo ls demo --prefix memories/
    """
    place = find_place(words, user)
    with connected(daemon, tenant, json) as client:
        found = client.list_memo(place.owner, scope=place.scope, prefix=prefix)
    if json:
        print_json({"items": found})
        return
    rows = [
        (one.name, str(one.revision), str(one.size), one.updated_at.isoformat(timespec="seconds"), one.summary)
        for one in found
    ]
    print_table(("name", "revision", "bytes", "updated", "summary"), rows)


@app.command("cat")
def cat(
    words: Words = None,
    revision: Annotated[int | None, typer.Option("--revision", "-r", min=1, help="An old revision.")] = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Print a document, exactly as it is stored.

    Example: sandboxd memo cat demo NOTES.md --revision 3
    """
    place = find_place(words, user, "NAME")
    with connected(daemon, tenant, json) as client:
        document = client.read_memo(place.owner, *place.words, scope=place.scope, revision=revision)
    if json:
        print_json({"name": place.words[0], "revision": document.revision, "text": document.text})
    else:
        print_text(document.text)


@app.command("put")
def put(
    words: Words = None,
    file: File = None,
    if_revision: Annotated[
        int | None,
        typer.Option(
            "--if-revision",
            min=0,
            help="Write only if the document is at this revision; 0 means that it must not exist.",
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="If the document has changed, try to merge both changes.")
    ] = False,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Replace a document with the text from stdin or a file. Live sandboxes show the new text at once.

    Example: echo 'Be brief.' | sandboxd memo put --user alice USER.md
    """
    place = find_place(words, user, "NAME")
    text = read_input(file)
    with connected(daemon, tenant, json) as client:
        written = client.write_memo(
            place.owner,
            place.words[0],
            text,
            scope=place.scope,
            expected=if_revision,
            merge=merge,
            actor=actor,
            reason=reason,
        )
    print_written(place.words[0], written, json)


@app.command("append")
def append(
    words: Words = None,
    file: File = None,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Append the text from stdin or a file to a document.

    Example: date | sandboxd memo append demo NOTES.md
    """
    place = find_place(words, user, "NAME")
    text = read_input(file)
    with connected(daemon, tenant, json) as client:
        written = client.append_memo(place.owner, place.words[0], text, scope=place.scope, actor=actor, reason=reason)
    print_written(place.words[0], written, json)


IfRevision = Annotated[
    int | None, typer.Option("--if-revision", min=1, help="Only if the document is at this revision.")
]


@app.command("rm")
def rm(
    words: Words = None,
    if_revision: IfRevision = None,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Delete a document. Its history stays, and `memo restore` brings an earlier revision back.

    Example: sandboxd memo rm demo memories/projects/x.md
    """
    place = find_place(words, user, "NAME")
    name = place.words[0]
    with connected(daemon, tenant, json) as client:
        deleted = client.delete_memo(
            place.owner, name, scope=place.scope, expected=if_revision, actor=actor, reason=reason
        )
    if json:
        print_json({"name": name, "revision": deleted.revision, "deleted": True})
    else:
        print_line(f"{name} is deleted; `memo restore` with revision {deleted.revision - 1} brings it back")


@app.command("mv")
def mv(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION] NAME NEW-NAME", help="Leave SESSION out with --user.")
    ] = None,
    if_revision: IfRevision = None,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Rename a document. Its history stays under the old name.

    Example: sandboxd memo mv demo plan.md memories/projects/plan.md
    """
    place = find_place(words, user, "NAME", "NEW-NAME")
    name, new_name = place.words
    with connected(daemon, tenant, json) as client:
        moved = client.move_memo(
            place.owner, name, new_name, scope=place.scope, expected=if_revision, actor=actor, reason=reason
        )
    if json:
        print_json({"name": moved.name, "revision": moved.revision, "sha256": moved.sha256, "moved_from": name})
    else:
        print_line(f"{name} is now {moved.name}, at revision {moved.revision}")


@app.command("history")
def history(
    words: Words = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The most revisions to list, newest first.")
    ] = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """List the revisions of a document, newest first.

    Example: sandboxd memo history demo NOTES.md
    """
    place = find_place(words, user, "NAME")
    with connected(daemon, tenant, json) as client:
        found = client.memo_history(place.owner, *place.words, scope=place.scope, limit=limit)
    if json:
        print_json({"items": found})
        return
    rows = [
        (
            str(one.revision),
            one.at.isoformat(timespec="seconds"),
            one.actor,
            one.session or "",
            str(one.size),
            _what(one),
        )
        for one in found
    ]
    print_table(("revision", "at", "actor", "session", "bytes", "reason"), rows)


@app.command("diff")
def diff(
    words: Words = None,
    before: Annotated[
        int | None, typer.Option("--from", min=0, help="The revision before --to by default; 0 is the empty text.")
    ] = None,
    after: Annotated[int | None, typer.Option("--to", min=1, help="The newest by default.")] = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Print what changed between two revisions.

    Example: sandboxd memo diff demo NOTES.md --from 2 --to 5
    """
    place = find_place(words, user, "NAME")
    with connected(daemon, tenant, json) as client:
        text = client.diff_memo(place.owner, *place.words, before=before, after=after, scope=place.scope)
    if json:
        print_json({"name": place.words[0], "diff": text})
    else:
        print_text(text)


@app.command("restore")
def restore(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SESSION] NAME REVISION", help="Leave SESSION out with --user."),
    ] = None,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Write the text of an old revision as a new one. No revision is lost.

    Example: sandboxd memo restore demo NOTES.md 3
    """
    place = find_place(words, user, "NAME", "REVISION")
    name, number = place.words
    if not (number.isascii() and number.isdecimal()) or len(number) > 18 or int(number) < 1:
        raise typer.BadParameter("it must be a whole number of at least 1", param_hint="REVISION")
    with connected(daemon, tenant, json) as client:
        written = client.restore_memo(place.owner, name, int(number), scope=place.scope, actor=actor, reason=reason)
    print_written(name, written, json)


def _what(revision: Revision) -> str:
    """Return what the table says about a revision besides its author."""
    parts = [
        "redacted" if revision.redacted else "",
        f"moved to {revision.moved_to}" if revision.moved_to else "deleted" if revision.deleted else "",
        f"moved from {revision.moved_from}" if revision.moved_from else "",
        "" if revision.redacted else revision.reason,
    ]
    return "; ".join(part for part in parts if part)


app.command("edit")(edit)
app.command("export")(export_all)
app.command("import")(import_all)
