"""A host job that changes memory while an agent works: the running container sees the new text, as a plain file.

Needs a running daemon: `make run` in another terminal.
"""

from __future__ import annotations

import secrets

from memo.errors import RevisionConflict
from sandboxd.client import Client, Sandbox

SHOW = "cat memo/user/USER.md"


def nightly_job(client: Client, user: str) -> None:
    """Add a line to what is known about a user. This may run anywhere that reaches the daemon."""
    while True:
        page = client.read_memo(user, "USER.md", scope="user")
        text = f"{page.text}- prefers short answers\n"
        try:
            client.write_memo(
                user, "USER.md", text, scope="user", expected=page.revision, actor="nightly", reason="what was learned"
            )
            return
        except RevisionConflict:
            continue  # an agent wrote in between: read its text and try again


def main() -> None:
    user = f"ada-{secrets.token_hex(4)}"
    with Client() as client, Sandbox.create(f"work-of-{user}", user=user, client=client) as sandbox:
        client.write_memo(user, "USER.md", "- lives in Bern\n", scope="user")
        print("before:", sandbox.commands.run(SHOW).stdout.splitlines())
        nightly_job(client, user)
        print("after: ", sandbox.commands.run(SHOW).stdout.splitlines())
        refused = sandbox.commands.run("echo mine > memo/user/USER.md")
        print("by hand:", refused.stderr.strip().rpartition(": ")[2])
        for revision in client.memo_history(user, "USER.md", scope="user"):
            print(f"revision {revision.revision} by {revision.actor}: {revision.reason or 'no reason given'}")
        sandbox.kill()


if __name__ == "__main__":
    main()
