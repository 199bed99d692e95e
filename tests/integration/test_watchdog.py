"""An ordinary user's daemon has no kernel quota: the watchdog ends a sandbox that writes too much."""

from __future__ import annotations

import pytest

from tests.ordinary_user import run_as_ordinary_user

pytestmark = pytest.mark.engine

_WRITES_TOO_MUCH = """
import sys
from pathlib import Path

import anyio

from memo.ids import SessionRef, UserId
from sandboxd import SandboxManager
from sandboxd.daemon.process import logs
from sandboxd.errors import WorkspaceFull
from sandboxd.limits import Limits
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.runner.calls import Exec
from sandboxd.settings import Settings


async def main(home):
    logs.configure("error")
    settings = Settings(data=home / "data", socket=home / "unused.sock", engine="bubblewrap", pool=0)
    async with SandboxManager(settings) as manager:
        assert manager.workspaces.kind == "watchdog"
        ref = SessionRef.of("acme", "s1")
        await manager.ensure_sandbox(ref, SandboxRequest(user=UserId("ada"), limits=Limits(disk_mb=16)))
        script = "i=0; while :; do i=$((i + 1)); head -c 4M /dev/zero > /workspace/$i; done"
        with await manager.call(ref) as runner:
            background = await runner.start_process(Exec("sleep 1000"))
            try:
                await runner.exec(Exec(script, timeout_s=60))
            except WorkspaceFull as error:
                print(error)
            processes = await runner.list_processes()
            print("background runs:", processes[0].running)
            done = await runner.exec(Exec("rm -f /workspace/[0-9]*; echo room again"))
            print(done.stdout.decode().strip())
        await manager.destroy(ref)


anyio.run(main, Path(sys.argv[1]), backend_options={"use_uvloop": True})
"""


def test_without_a_quota_the_watchdog_ends_writers_beyond_the_limit() -> None:
    printed = run_as_ordinary_user(_WRITES_TOO_MUCH).splitlines()
    assert printed[0].startswith("cannot continue: the workspace is over its limit of 16 MB")
    assert printed[1:] == ["background runs: False", "room again"]
