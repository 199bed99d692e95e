"""A tour of the object API, synchronous and async. It needs a running daemon: `make run` in another terminal."""

from __future__ import annotations

import asyncio

from sandboxd.client import AsyncSandbox, Sandbox


def tour(session: str) -> None:
    with Sandbox.create(session, user="ada", env={"GREETING": "hello"}) as sandbox:
        # A command that fails is a result, not an error.
        result = sandbox.commands.run("echo $GREETING; exit 3")
        print(result.stdout.strip(), result.exit_code)
        sandbox.commands.run("for n in 1 2; do echo $n; done", on_stdout=lambda text: print("live:", text.split()))

        # In the background: read it, write to it, wait for it.
        command = sandbox.commands.run("read name; echo got $name", background=True)
        command.send_stdin("Ada\n")
        print(command.wait().exit_code, command.output.strip())
        print([process.id for process in sandbox.commands.list()] == [command.id])

        sandbox.files.write("notes/today.txt", "buy milk\n")
        print(sandbox.files.read("notes/today.txt").strip())

        # Memory outlives the sandbox, and every revision of it is kept.
        sandbox.memo.write("NOTES.md", "# Plan\n\n- write the report\n")
        sandbox.memo.edit("NOTES.md", "write", "send")
        print(sandbox.memo.read("NOTES.md").text.splitlines()[-1], len(sandbox.memo.history("NOTES.md")))

        terminal = sandbox.pty.create("stty size; read line; echo typed $line", rows=40, columns=100)
        sandbox.pty.send(terminal.id, "by hand\n")
        shown = b"".join(terminal)
        print(b"40 100" in shown, b"typed by hand" in shown)

        print(sandbox.tools.call("Bash", {"command": "pwd"}).content)
        print(sandbox.stats().memory_bytes > 0)

    # Leaving the block leaves the sandbox running. `kill` removes it.
    with Sandbox.connect(session) as sandbox:
        print(sandbox.view.state)
        sandbox.kill()


async def async_tour(session: str) -> None:
    async with await AsyncSandbox.create(session, user="ada", env={"GREETING": "hello"}) as sandbox:
        result = await sandbox.commands.run("echo $GREETING; exit 3")
        print(result.stdout.strip(), result.exit_code)
        await sandbox.commands.run(
            "for n in 1 2; do echo $n; done", on_stdout=lambda text: print("live:", text.split())
        )

        command = await sandbox.commands.run("read name; echo got $name", background=True)
        await command.send_stdin("Ada\n")
        print((await command.wait()).exit_code, command.output.strip())
        print([process.id for process in await sandbox.commands.list()] == [command.id])

        await sandbox.files.write("notes/today.txt", "buy milk\n")
        print((await sandbox.files.read("notes/today.txt")).strip())

        await sandbox.memo.write("NOTES.md", "# Plan\n\n- write the report\n")
        await sandbox.memo.edit("NOTES.md", "write", "send")
        notes = await sandbox.memo.read("NOTES.md")
        print(notes.text.splitlines()[-1], len(await sandbox.memo.history("NOTES.md")))

        terminal = await sandbox.pty.create("stty size; read line; echo typed $line", rows=40, columns=100)
        await sandbox.pty.send(terminal.id, "by hand\n")
        shown = b"".join([piece async for piece in terminal])
        print(b"40 100" in shown, b"typed by hand" in shown)

        print((await sandbox.tools.call("Bash", {"command": "pwd"})).content)
        print((await sandbox.stats()).memory_bytes > 0)

    async with await AsyncSandbox.connect(session) as sandbox:
        print(sandbox.view.state)
        await sandbox.kill()


if __name__ == "__main__":
    tour("tour")
    asyncio.run(async_tour("async-tour"))
