"""What the clients load, and when: an import during a call would block the caller's event loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import memo
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

MEET_ERRORS = """
import asyncio, json, sys
from sandboxd.client import AsyncClient

async def name_of(call):
    try:
        await call
    except Exception as error:
        return type(error).__name__

async def main(socket):
    async with AsyncClient(socket) as client, AsyncClient(socket + ".none") as nowhere:
        before = set(sys.modules)
        await client.ensure_sandbox("s1", "u1")
        await client.write_memo("s1", "NOTES.md", "one")
        met = [
            await name_of(client.get_sandbox("s2")),
            await name_of(client.ensure_sandbox("s1", "u2")),
            await name_of(client.write_memo("s1", "NOTES.md", "two", expected=7)),
            await name_of(client.get_sandbox("a b")),
            await name_of(nowhere.health()),
        ]
        print(json.dumps([met, sorted(set(sys.modules) - before)]))

asyncio.run(main(sys.argv[1]))
"""


async def test_the_first_calls_and_errors_of_a_process_load_no_module(tmp_path: Path) -> None:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        done = await anyio.run_process([sys.executable, "-c", MEET_ERRORS, str(world.socket)], check=False)
    assert done.returncode == 0, done.stderr.decode()
    met, loaded = json.loads(done.stdout)
    assert met == ["SandboxNotFound", "Conflict", "RevisionConflict", "InvalidKey", "DaemonUnreachable"]
    assert loaded == []


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
def test_a_client_loads_no_store(name: str) -> None:
    script = f"import sys; from sandboxd.client import {name}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "memo.errors" in loaded
    assert [module for module in loaded if module.startswith("memo.stores") or module == "sqlite3"] == []


def test_every_public_name_of_memo_can_be_imported() -> None:
    script = "import memo; print(*(name for name in memo.__all__ if getattr(memo, name, None) is None))"
    done = subprocess.run([sys.executable, "-c", f"from memo import *\n{script}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
