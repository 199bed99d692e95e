"""The warm pool after an outage of the engine: its backoff ends with the outage, however long that was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import anyio
import docker
import pytest

from memo.ids import SessionRef, UserId
from sandboxd.daemon.readiness import ReadinessChecks
from sandboxd.engine.docker import DockerEngine
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.settings import Settings
from tests.conformance.proxy import CuttableProxy, FreezableProxy
from tests.running import unmount_below

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

_HANG_GUARD_S = 60


@pytest.fixture
def settings(tmp_path: Path, agent_image: str) -> Settings:
    return Settings(data=tmp_path / "data", socket=tmp_path / "socket", image=agent_image, pool=1, cache="disk")


@pytest.fixture(autouse=True)
def nothing_left(settings: Settings, docker_client: docker.DockerClient) -> Iterator[None]:
    yield
    label = f"sandboxd.instance={(settings.data / 'instance').read_text()}"
    for container in docker_client.containers.list(all=True, filters={"label": label}):
        container.remove(force=True)
    unmount_below(settings.data)


async def wait_for_warm(manager: SandboxManager) -> str:
    """Wait for the one warm sandbox, and return its container."""
    with anyio.fail_after(_HANG_GUARD_S):
        while manager.pool.ready != 1:
            await anyio.sleep(0.05)
    (sandbox,) = manager._pool.all()
    assert sandbox.record.container is not None
    return sandbox.record.container


def rest_for_ever(manager: SandboxManager) -> None:
    """The backoff of a pool after many failures, only longer."""
    manager._pool._rests_until = math.inf
    manager._pool._misses_engine = True


async def test_when_the_engine_s_events_are_back_the_pool_is_refilled(
    settings: Settings, engine_socket: str, tmp_path: Path, docker_client: docker.DockerClient
) -> None:
    proxy = CuttableProxy(tmp_path / "engine.sock", engine_socket)
    proxy.serve()
    async with SandboxManager(settings, engine=DockerEngine(tmp_path, proxy.url)) as manager:
        before = await wait_for_warm(manager)
        await anyio.to_thread.run_sync(proxy.cut)
        await anyio.to_thread.run_sync(docker_client.api.remove_container, before, False, False, True)
        rest_for_ever(manager)
        proxy.serve()
        with anyio.fail_after(_HANG_GUARD_S):
            while await wait_for_warm(manager) == before:
                await anyio.sleep(0.05)
    await anyio.to_thread.run_sync(proxy.cut)


async def test_when_a_readiness_check_finds_the_engine_again_the_pool_is_refilled(
    settings: Settings, engine_socket: str, tmp_path: Path
) -> None:
    with FreezableProxy(tmp_path / "engine.sock", engine_socket) as proxy:
        async with (
            SandboxManager(settings, engine=DockerEngine(tmp_path, proxy.url)) as manager,
            anyio.create_task_group() as tasks,
        ):
            await wait_for_warm(manager)
            checks = ReadinessChecks(manager, tasks, deadline_s=0.2)
            proxy.freeze()
            assert not (await checks.check()).engine.ok
            rest_for_ever(manager)
            proxy.thaw()
            with anyio.fail_after(_HANG_GUARD_S):
                while not (await checks.check()).engine.ok:
                    await anyio.sleep(0.05)
            assert manager._pool._rests_until < math.inf


async def test_when_a_caller_gets_a_container_the_pool_is_refilled(
    settings: Settings, engine_socket: str, tmp_path: Path
) -> None:
    async with SandboxManager(settings, engine=DockerEngine(settings.data.parent, engine_socket)) as manager:
        await wait_for_warm(manager)
        (warm,) = manager._pool.all()
        manager._retire(warm)
        rest_for_ever(manager)
        view = await manager.ensure_sandbox(SessionRef.of("acme", "s1"), SandboxRequest(user=UserId("ada")))
        assert not view.from_pool
        await wait_for_warm(manager)


async def test_an_engine_that_never_failed_does_not_cut_a_pause_short(settings: Settings, engine_socket: str) -> None:
    async with (
        SandboxManager(settings, engine=DockerEngine(settings.data.parent, engine_socket)) as manager,
        anyio.create_task_group() as tasks,
    ):
        await wait_for_warm(manager)
        rest_for_ever(manager)
        checks = ReadinessChecks(manager, tasks)
        for _ in range(3):
            assert (await checks.check()).engine.ok
        assert manager._pool._rests_until == math.inf
