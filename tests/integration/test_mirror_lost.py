"""A mirror's directory is removed on the host while a container shows it: the container is removed, never left with an
empty memory (I4), and its workspace stays (I14)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import docker
import pytest

from memo import open_store
from memo.documents import DocumentKey
from memo.ids import SessionRef, UserId
from sandboxd.client import Client
from sandboxd.engine.docker import DockerEngine
from sandboxd.errors import Gone
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.runner.calls import Exec
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.settings import Settings
from tests.running import RunningDaemon, unmount_below

pytestmark = [pytest.mark.engine]

_HANG_GUARD_S = 60
NOTES = "cat /workspace/memo/session/NOTES.md"
REF, REQUEST = SessionRef.of("acme", "s1"), SandboxRequest(user=UserId("ada"))


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image, cache="memory")
    try:
        yield running
    finally:
        running.stop()


def begin(client: Client, session: str) -> str:
    """Make a sandbox with a file, a document and a process; return its container."""
    sandbox = client.ensure_sandbox(session, user=session)
    client.write_memo(session, "NOTES.md", f"notes of {session}\n")
    client.exec(session, f"echo work of {session} > /workspace/file; sleep 1000 > /dev/null 2>&1 & disown")
    return str(sandbox.container)


@pytest.mark.parametrize("lost", ["subdirectories", "everything", "mirrors"])
def test_a_sandbox_that_lost_its_mirror_is_gone_and_comes_back_complete(daemon: RunningDaemon, lost: str) -> None:
    with daemon.start().client() as client:
        begin(client, "s1")
    daemon.kill()
    place = (daemon.data / "mirrors").readlink().parent
    if lost == "everything":
        shutil.rmtree(place)
    for directory in {"subdirectories": place.iterdir(), "mirrors": (place / "mirrors").iterdir()}.get(lost, ()):
        shutil.rmtree(directory)
    with daemon.start().client() as client:
        with pytest.raises(Gone, match="the directory that showed its memory was removed"):
            client.exec("s1", NOTES)
        found = client.get_sandbox("s1")
        assert (found.state, found.cause) == ("gone", "mirror")
        client.ensure_sandbox("s1", user="s1")
        assert client.exec("s1", f"{NOTES}; cat /workspace/file").stdout == "notes of s1\nwork of s1\n"
        client.write_memo("s1", "NOTES.md", "later\n")
        assert client.exec("s1", NOTES).stdout == "later\n"


def test_a_lost_mirror_does_not_affect_other_sandboxes(daemon: RunningDaemon) -> None:
    with daemon.start().client() as client:
        begin(client, "s1")
        (lost,) = (daemon.data / "mirrors").iterdir()
        kept = begin(client, "s2")
    daemon.kill()
    shutil.rmtree(lost)
    lost.mkdir()  # another directory of the same name is not the one that the container shows
    with daemon.start().client() as client:
        assert client.exec("s2", f"{NOTES}; pgrep -c sleep").stdout == "notes of s2\n1\n"
        assert client.get_sandbox("s2").container == kept
        assert client.get_sandbox("s1").cause == "mirror"


@pytest.fixture
def settings(tmp_path: Path, agent_image: str, docker_client: docker.DockerClient) -> Iterator[Settings]:
    settings = Settings(data=tmp_path / "data", socket=tmp_path / "socket", image=agent_image, pool=0, cache="disk")
    yield settings
    label = f"sandboxd.instance={(settings.data / 'instance').read_text()}"
    for container in docker_client.containers.list(all=True, filters={"label": label}):
        container.remove(force=True)
    unmount_below(settings.data)


@pytest.mark.anyio
async def test_a_mirror_that_is_lost_while_the_daemon_runs_is_found_when_it_is_verified(
    settings: Settings, engine_socket: str
) -> None:
    async with (
        open_store("memory://") as store,
        SandboxManager(
            settings, engine=DockerEngine(settings.data.parent, engine_socket), memo_provider=store
        ) as manager,
    ):
        assert manager.memory is not None
        await manager.ensure_sandbox(REF, REQUEST)
        await manager.memory.verify(REF)
        assert manager.get(REF).state == "ready"
        (mirror,) = (settings.data / "mirrors").iterdir()
        shutil.rmtree(mirror)
        await manager.memory.write(DocumentKey.of("acme", "s1", "session", "NOTES.md"), "text\n")
        assert mirror.exists(), "the write made it again, where the container does not see it"
        await manager.memory.verify(REF)
        with anyio.fail_after(_HANG_GUARD_S):
            while manager.get(REF).container is not None:
                await anyio.sleep(0.05)
        assert (manager.get(REF).state, manager.get(REF).cause) == ("gone", "mirror")
        await manager.ensure_sandbox(REF, REQUEST)
        with await manager.call(REF) as runner:
            assert (await runner.exec(Exec(("sh", "-c", NOTES)))).stdout == b"text\n"


@pytest.mark.anyio
async def test_a_warm_sandbox_whose_mirror_was_lost_is_not_handed_out(settings: Settings, engine_socket: str) -> None:
    settings = settings.model_copy(update={"pool": 1})
    async with (
        open_store("memory://") as store,
        SandboxManager(
            settings, engine=DockerEngine(settings.data.parent, engine_socket), memo_provider=store
        ) as manager,
    ):
        assert manager.memory is not None
        await manager.memory.write(DocumentKey.of("acme", "s1", "session", "NOTES.md"), "text\n")
        with anyio.fail_after(_HANG_GUARD_S):
            while manager.pool.ready != 1:
                await anyio.sleep(0.05)
        (mirror,) = (settings.data / "mirrors").iterdir()
        shutil.rmtree(mirror)
        view = await manager.ensure_sandbox(REF, REQUEST)
        assert not view.from_pool
        with await manager.call(REF) as runner:
            assert (await runner.exec(Exec(("sh", "-c", NOTES)))).stdout == b"text\n"
