"""Both clients over https: the certificates that they trust, and streams in both directions at once."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from sandboxd.api.tls import read_tls
from sandboxd.client import AsyncClient, Client, DaemonUnreachable, ExecOutput
from tests.certificates import make_pair
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

PIECE = bytes(range(250)) * 1000
PIECES = 32
MOST = 16_777_216
HANG_S = 60


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture
async def world(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
    async with serving(tmp_path, tls=read_tls(*pair), drain_s=60) as world:
        yield world


def where(world: World) -> dict[str, Any]:
    return {"url": world.url.replace("http://", "https://"), "token": world.token}


async def test_commands_run_over_one_connection_that_is_kept_alive(world: World) -> None:
    def work() -> list[str]:
        with Client(**where(world)) as client:
            client.ensure_sandbox("s1", "u1")
            return [client.exec("s1", f"echo {number}").stdout for number in range(3)]

    assert await anyio.to_thread.run_sync(work) == ["0\n", "1\n", "2\n"]
    async with AsyncClient(**where(world)) as client:
        assert (await client.exec("s1", "echo async")).stdout == "async\n"


async def test_a_command_is_fed_while_its_output_is_read(world: World) -> None:
    def echo() -> bytes:
        with Client(**where(world)) as client:
            client.ensure_sandbox("s1", "u1")
            items = client.exec_stream("s1", ["cat"], stdin=itertools.repeat(PIECE, PIECES), max_output_bytes=MOST)
            return b"".join(item.data for item in items if isinstance(item, ExecOutput))

    with anyio.fail_after(HANG_S):
        assert await anyio.to_thread.run_sync(echo) == PIECE * PIECES
    async with AsyncClient(**where(world)) as client:
        with anyio.fail_after(HANG_S):
            items = client.exec_stream("s1", ["cat"], stdin=itertools.repeat(PIECE, PIECES), max_output_bytes=MOST)
            assert b"".join([item.data async for item in items if isinstance(item, ExecOutput)]) == PIECE * PIECES


async def test_a_certificate_that_is_not_trusted_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = make_pair(tmp_path / "other", "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))

    def work() -> None:
        with Client(**where(world)) as client:
            client.health()

    with pytest.raises(DaemonUnreachable, match="certificate verify failed"):
        await anyio.to_thread.run_sync(work)
    async with AsyncClient(**where(world)) as client:
        with pytest.raises(DaemonUnreachable, match="certificate verify failed"):
            await client.health()


async def test_a_daemon_without_tls_is_unreachable_by_https(tmp_path: Path) -> None:
    async with serving(tmp_path) as plain:

        def work() -> None:
            with Client(**where(plain)) as client:
                client.health()

        with pytest.raises(DaemonUnreachable, match="cannot reach"):
            await anyio.to_thread.run_sync(work)
        async with AsyncClient(**where(plain)) as client:
            with pytest.raises(DaemonUnreachable, match="cannot reach"):
                await client.health()
