"""Archives, watches and full filesystems on a real daemon with every engine."""

from __future__ import annotations

import io
import secrets
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import FileEvent, Sandbox
from sandboxd.errors import ReadOnly
from tests.ordinary_user import UID
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

ENGINES = ("docker", "bubblewrap", "bubblewrap of an ordinary user")
DISK_MB = 16
PATIENCE_S = 60


@pytest.fixture(scope="module", params=ENGINES)
def running(request: pytest.FixtureRequest, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    engine, _, ordinary = request.param.partition(" ")
    limits = f'{{"disk_mb": {DISK_MB}}}'
    running = RunningDaemon(engine=engine, uid=UID if ordinary else None, idle_timeout_s=0, limits=limits)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def sandbox(running: RunningDaemon) -> Iterator[Sandbox]:
    with running.client() as client:
        sandbox = Sandbox(client, client.ensure_sandbox(f"s-{secrets.token_hex(4)}", user="ada"))
        yield sandbox
        sandbox.kill()


def sh(sandbox: Sandbox, script: str) -> str:
    done = sandbox.commands.run(script)
    assert done.exit_code == 0, done
    return done.stdout


class Follower:
    """Collects the events of a watch in a thread, until a wanted one has come."""

    def __init__(self, running: RunningDaemon, session: str, path: str) -> None:
        self.events: list[FileEvent] = []
        self._changed = threading.Condition()
        self._client = running.client()
        self._thread = threading.Thread(target=self._follow, args=(session, path), daemon=True)
        self._thread.start()
        self.wait_for("ready", path)

    def _follow(self, session: str, path: str) -> None:
        for event in self._client.watch_files(session, path, recursive=True):
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    def wait_for(self, kind: str, path: str) -> None:
        def is_there() -> bool:
            return any((event.event, event.path) == (kind, path) for event in self.events)

        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE_S), (kind, path, self.events)

    def close(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._client.close()


def test_a_workspace_is_copied_to_another_sandbox_through_this_host(
    running: RunningDaemon, sandbox: Sandbox, tmp_path: Path
) -> None:
    sh(sandbox, "mkdir -p a/b && echo one > a/b/one && chmod 750 a/b && ln -s one a/b/link && ln a/b/one a/twin")
    sandbox.memo.write("NOTES.md", "remember")
    assert sandbox.files.download("/workspace", tmp_path / "host").skipped == ()
    assert sorted(path.name for path in (tmp_path / "host").iterdir()) == ["a"]
    with running.client() as client:
        other = Sandbox(client, client.ensure_sandbox("other", user="ada"))
        other.files.upload(tmp_path / "host", "/workspace")
        assert (
            sh(other, "cat a/b/link a/twin; stat -c %a a/b; stat -c %U a/b/one; ls")
            == "one\none\n750\nagent\na\nmemo\n"
        )
        other.kill()


def test_the_memo_mirror_is_never_written_by_an_archive(sandbox: Sandbox) -> None:
    sandbox.memo.write("NOTES.md", "remember")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("memo/session/NOTES.md"))
    with pytest.raises(ReadOnly, match=r"memo/session/NOTES\.md"):
        sandbox.client.write_archive(sandbox.view.session, "/workspace", [buffer.getvalue()])
    with sandbox.client.open_archive(sandbox.view.session, "/workspace/memo") as pieces:
        data = b"".join(pieces)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert any(name.endswith("NOTES.md") for name in tar.getnames())


def test_a_watch_sees_the_agents_files_and_its_memory(running: RunningDaemon, sandbox: Sandbox) -> None:
    session = sandbox.view.session
    sandbox.memo.write("NOTES.md", "first")
    notes = sh(sandbox, "find /workspace/memo -name NOTES.md").strip()
    follower = Follower(running, session, "/workspace")
    sh(sandbox, "mkdir -p x/y/z && echo 1 > x/y/z/file")
    follower.wait_for("created", "/workspace/x/y/z/file")
    sh(sandbox, "echo 2 >> x/y/z/file")
    follower.wait_for("changed", "/workspace/x/y/z/file")
    sh(sandbox, "rm -r x")
    follower.wait_for("removed", "/workspace/x")
    follower.events.clear()
    sandbox.memo.write("NOTES.md", "second")
    follower.wait_for("created", notes)
    sandbox.kill()
    follower.close()


def fill(place: str) -> str:
    """Return a script that writes files until one fails. None is larger than a workspace may be."""
    return f"for i in 1 2 3 4 5 6 7 8 9; do head -c 15M /dev/zero > {place}/large$i || exit 1; done"


def test_a_command_that_fills_a_filesystem_names_it(sandbox: Sandbox) -> None:
    run = sandbox.commands.run
    assert (run("false").limits_hit, run(fill("/tmp/none")).limits_hit) == ((), ())
    done = run(fill("/tmp"))
    assert (done.exit_code, done.limits_hit) == (1, ("tmp",)), done
    assert run("true").limits_hit == ()
    result = sandbox.tools.call("Bash", {"command": "echo more > /tmp/more"})
    assert "[/tmp is full: " in result.content
    sh(sandbox, "rm /tmp/large*")
    assert run("false").limits_hit == ()
    done = run("head -c 17M /dev/zero > /tmp/one")
    assert (done.exit_code, done.limits_hit) == (153, ("workspace",)), done
    sh(sandbox, "rm /tmp/one")
    if int(sh(sandbox, "df -BM --output=size /workspace | tail -1").strip().removesuffix("M")) > DISK_MB:
        return  # its workspace has no quota of its own; the watchdog ends what writes too much
    for place in ("/workspace", "/var/tmp"):
        done = run(fill(place))
        assert (done.exit_code, done.limits_hit) == (1, ("workspace",)), done
        assert run("true").limits_hit == ()
        assert run("sleep 10", timeout_s=0.2).limits_hit == ("workspace",)
        sh(sandbox, f"rm {place}/large*")
        assert run("false").limits_hit == ()
    done = run("mkdir i && cd i && for i in $(seq 20000); do : > $i || exit 1; done")
    assert (done.exit_code, done.limits_hit) == (1, ("workspace",)), done.stderr[-200:]
    result = sandbox.tools.call("Python", {"code": "open('/workspace/more', 'w')"})
    assert "[the workspace reached its limit: " in result.content
    sh(sandbox, "rm -r i")
