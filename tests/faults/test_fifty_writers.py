"""Readers in a container loop over all of memory while fifty writers write: no torn text, no older revision. (I3)"""

from __future__ import annotations

import json
import threading

import pytest

from memo.errors import RevisionConflict
from sandboxd.client import Client
from sandboxd.client.request import Scope
from tests.faults.stores import size_of
from tests.faults.test_memory_killed import NOTES, USER, inside
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

SECONDS = size_of("SANDBOXD_TEST_WRITERS_S", 4)
WRITERS = 50
LINES = 300
SESSIONS = ("a", "b", "c")
WRITTEN: list[tuple[str, str, Scope]] = [("ada", "USER.md", "user"), ("a", "NOTES.md", "session")]

# Each text is one number on 300 lines, so half a text or an older one is recognised at once.
READER = f"""
import json, os, sys, time
seen, reads, end = {{}}, 0, time.monotonic() + {SECONDS}
while time.monotonic() < end:
    for directory, _, names in os.walk("/workspace/memo"):
        for name in names:
            path = os.path.join(directory, name)
            if name.startswith("."):
                continue
            lines = open(path).read().split()
            numbers = set(lines)
            assert len(lines) == {LINES} and len(numbers) == 1, (path, len(lines), sorted(numbers)[:3])
            number = int(numbers.pop())
            assert number >= seen.get(path, 0), (path, number, seen[path])
            seen[path], reads = number, reads + 1
print(json.dumps([reads, seen]))
"""


def text_of(number: int) -> str:
    return f"{number}\n" * LINES


def _read(daemon: RunningDaemon, session: str, results: dict[str, str]) -> None:
    with daemon.client() as client:
        done = client.exec(session, ["python3", "-c", READER], timeout_s=SECONDS + 60)
        results[session] = done.stdout or done.stderr


def _write(daemon: RunningDaemon, number: int, is_over: threading.Event, counts: list[int]) -> None:
    """Increment repeatedly, like an agent that reads first; of two writers one wins and the other retries."""
    with daemon.client() as client:
        while not is_over.is_set():
            owner, name, scope = WRITTEN[number % 2]
            before = client.read_memo(owner, name, scope=scope)
            try:
                client.write_memo(
                    owner, name, text_of(int(before.text.split()[0]) + 1), scope=scope, expected=before.revision
                )
            except RevisionConflict:
                continue
            counts[number] += 1


def _write_artifacts(client: Client, is_over: threading.Event) -> int:
    """Write and change tool results at the same time."""
    number = 0
    while not is_over.is_set():
        number += 1
        client.write_artifact("a", f"call-{number % 5}", text_of(number))
    return number


@pytest.mark.timeout(180 + SECONDS * 3)
def test_readers_inside_see_no_torn_and_no_older_text_while_fifty_writers_write(daemon: RunningDaemon) -> None:
    daemon.start()
    results: dict[str, str] = {}
    counts = [0] * WRITERS
    is_over = threading.Event()
    with daemon.client() as client:
        client.write_memo("ada", "USER.md", text_of(1), scope="user")
        client.write_memo("a", "NOTES.md", text_of(1))
        for session in SESSIONS:
            client.ensure_sandbox(session, user="ada")
        readers = [threading.Thread(target=_read, args=(daemon, session, results)) for session in SESSIONS]
        writers = [threading.Thread(target=_write, args=(daemon, number, is_over, counts)) for number in range(WRITERS)]

        def end() -> None:
            for reader in readers:
                reader.join()
            is_over.set()

        ending = threading.Thread(target=end)
        for thread in (*readers, *writers, ending):
            thread.start()
        artifacts = _write_artifacts(client, is_over)
        for thread in (*writers, ending):
            thread.join()
        for session in SESSIONS:
            reads, seen = json.loads(results[session])
            assert reads > 0
            assert seen[USER] > 1
        # Every acknowledged write incremented by one, so no writer overwrote a text that it had not seen. (I1)
        user, notes = (int(text.split()[0]) for text in (_newest(client, "user"), _newest(client, "session")))
        assert (user - 1, notes - 1) == (sum(counts[0::2]), sum(counts[1::2]))
        # A write is answered after the mirrors, so the last revision is everywhere by now.
        assert {inside(client, session, USER) for session in SESSIONS} == {text_of(user)}
        assert inside(client, "a", NOTES) == text_of(notes)
        last = f"/workspace/memo/session/tool-results/call-{artifacts % 5}.txt"
        assert inside(client, "a", last) == text_of(artifacts)
        assert all(file.in_sync for session in SESSIONS for file in client.get_mirror(session))


def _newest(client: Client, scope: str) -> str:
    if scope == "user":
        return client.read_memo("ada", "USER.md", scope="user").text
    return client.read_memo("a", "NOTES.md").text
