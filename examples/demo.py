"""A one-minute tour of sandboxd: its own daemon, tools, limits, memory, and recovery after a kill -9.

Everything printed is real output. `make demo` runs it; it cleans up after itself.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from memo.errors import RevisionConflict
from sandboxd.client import Client
from sandboxd.errors import NotFound

NOTES = "/workspace/memo/session/NOTES.md"
USER = "/workspace/memo/user/USER.md"

console = Console(highlight=False, soft_wrap=True)


def say(text: str) -> None:
    console.print(f"\n[bold cyan]▸ {text}[/]")


def show(text: str) -> None:
    for line in text.rstrip().splitlines():
        console.print(f"    {line}", markup=False)


def serve(root: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "SANDBOXD_DATA": str(root / "data"), "SANDBOXD_SOCKET": str(root / "d.sock")}
    env["SANDBOXD_POOL"] = "0"  # warm sandboxes outlive the daemon, but this tour leaves nothing behind
    with (root / "daemon.log").open("ab") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "sandboxd", "serve"], env=env, stdout=-1, stderr=log)
    assert daemon.stdout is not None  # noqa: S101  # stdout is a pipe
    show(daemon.stdout.readline().decode())
    return daemon


def timed_ms(client: Client, session: str, count: int = 100) -> float:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        client.exec(session, ["true"])
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def appears_after_ms(client: Client, session: str, path: str, text: str, write: Callable[[], object]) -> float:
    """Return how long after the response to a write a process inside, which polls the file, sees the new text."""
    wait = f"import time\nprint(flush=True)\nwhile open({path!r}).read() != {text!r}: pass\nprint(time.time())"
    process = client.start_process(session, ["python3", "-c", wait])
    waiting = client.read_process(session, process.id, wait_s=10)
    write()
    answered = time.time()
    output = client.read_process(session, process.id, offset=waiting.next_offset, wait_s=10)
    return (float(output.data) - answered) * 1000


def show_memory(client: Client) -> None:
    say("Memory written by the platform appears as plain files")
    client.write_memo("research", "NOTES.md", "# Notes\n- the user measures twice\n")
    client.write_memo("ada", "USER.md", "# Ada\n- prefers short answers\n", scope="user")
    client.ensure_sandbox("writing", user="ada")
    show(client.exec("writing", "cat memo/user/USER.md").stdout)
    show(client.exec("writing", "echo hacked > memo/user/USER.md").stderr)

    say("An edit by the agent's tool goes to the store first, then to the file")
    edit = {"file_path": NOTES, "old_string": "measures twice", "new_string": "measures twice, cuts once"}
    show(client.tool("research", "Edit", edit).content)
    show(client.read_memo("research", "NOTES.md").text)

    say("An edit of text that has changed in the meantime is refused, with the newer text")
    seen = client.read_memo("research", "NOTES.md")
    client.append_memo("research", "NOTES.md", "- and sands it\n", actor="colleague")
    try:
        client.write_memo("research", "NOTES.md", "mine alone", expected=seen.revision)
    except RevisionConflict as error:
        show(str(error))
        show(error.current.content if error.current else "")

    say("A host job writes, and a process inside sees the change")
    text = "# Ada\n- prefers short answers\n- likes tea\n"
    took = appears_after_ms(
        client, "writing", USER, text, lambda: client.write_memo("ada", "USER.md", text, scope="user", actor="job")
    )
    show(f"{took:.1f} ms after the write was acknowledged (below zero: before)")
    show(f"in the other sandbox as well: {client.exec('research', ['cat', USER]).stdout == text}")

    show_compaction(client)
    client.destroy_sandbox("writing")


def show_compaction(client: Client) -> None:
    say("A long conversation is compacted: a section in NOTES.md, and nothing is lost")
    talk = [{"role": role, "content": f"{role} {n}: boards"} for n in range(1, 4) for role in ("user", "assistant")]
    client.append_turn("research", talk, {"input": 900, "output": 120})
    done = client.compact_session("research", force=True)
    show(f"{done.archived} messages archived; {len(client.load_messages('research'))} are left to load")
    show(f"all of them can still be read: {client.load_messages('research', full=True) == talk}")
    show(client.exec("research", ["tail", "-n", "+5", NOTES]).stdout)

    say("A long tool result becomes a stub; the full text appears inside as a file")
    result = {"role": "toolResult", "toolCallId": "call-7", "content": "one of very many lines of a log\n" * 2000}
    short = client.compact_tool_results("research", [result], keep_recent=0)
    show(short.messages[0]["content"][:300])
    show(client.exec("research", "wc memo/session/tool-results/call-7.txt").stdout)


def tour(root: Path) -> None:
    say("A daemon with its own data directory")
    daemon = serve(root)
    client = Client(root / "d.sock")
    try:
        say("A sandbox for one of ada's sessions")
        started = time.perf_counter()
        sandbox = client.ensure_sandbox("research", user="ada", limits={"memory_mb": 128, "pids": 64})
        show(f"{sandbox.state} on {sandbox.engine} after {(time.perf_counter() - started) * 1000:.0f} ms")
        show(client.exec("research", "id; hostname; ls -la /workspace").stdout)

        say("No network, a read-only system, no way to gain privileges")
        show(client.exec("research", "curl -sS http://example.invalid; touch /etc/x; unshare -r true").stderr)

        say("The tools that agents use")
        client.tool("research", "Write", {"file_path": "/workspace/plan.md", "content": "# Plan\n- measure\n- cut\n"})
        client.tool(
            "research",
            "Edit",
            {"file_path": "/workspace/plan.md", "old_string": "measure", "new_string": "measure twice"},
        )
        show(client.tool("research", "Read", {"file_path": "/workspace/plan.md"}).content)

        say("The round trip of a command")
        show(f"{timed_ms(client, 'research'):.2f} ms (median of 100)")

        say("A memory hog, a fork bomb, and the call after them")
        hog = client.exec("research", ["python3", "-c", "bytearray(10**9)"])
        show(f"hog: exit code {hog.exit_code}, limits hit: {', '.join(hog.limits_hit)}")
        bomb = client.exec("research", "b() { b | b & }; b; sleep 60", timeout_s=2)
        show(f"bomb: timed out: {bomb.timed_out}, limits hit: {', '.join(bomb.limits_hit)}")
        show(client.exec("research", "echo still here").stdout)

        say("Another tenant with the same session id sees none of it")
        try:
            client.exec("research", "true", tenant="other")
        except NotFound as error:
            show(str(error))

        show_memory(client)

        say("kill -9 of the daemon while a process runs in the background")
        process = client.start_process("research", "for i in 1 2 3 4 5; do echo tick $i; sleep 0.4; done")
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        if daemon.stdout is not None:
            daemon.stdout.close()
        daemon = serve(root)
        output = client.read_process("research", process.id)
        while output.process.running:
            output = client.read_process("research", process.id, offset=output.next_offset, wait_s=5)
        show(client.read_process("research", process.id).data.decode())
        again = client.get_sandbox("research")
        show(f"the same container as before: {again.container == sandbox.container}")
        show(client.exec("research", "cat /workspace/plan.md memo/session/NOTES.md").stdout)

        say("Clean up")
        client.destroy_sandbox("research")
        show(f"sandboxes left: {len(client.list_sandboxes())}")
    finally:
        for left in client.list_sandboxes():
            client.destroy_sandbox(left.session)
        client.close()
        daemon.terminate()
        daemon.wait()
        if daemon.stdout is not None:
            daemon.stdout.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sandboxd-demo-") as directory:
        tour(Path(directory))
