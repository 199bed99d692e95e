"""A hardened container with the real runner as PID 1, for tests of the runner alone: no daemon, no manager."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from sandboxd.runner.client import RunnerClient
from sandboxd.runner.listener import RunnerListener
from sandboxd.runner.protocol import RUN_TARGET, RUNNER_COMMAND, RUNNER_DIR, RUNNER_TARGET
from sandboxd.runner.secret import mint_secret

UID = 10001
PIDS = 128
MEMORY = "256m"
HANG_S = 60


class Box:
    """One container. Its runner outlives the listeners of single tests, as it outlives a daemon."""

    def __init__(self, image: str, memory: str = MEMORY) -> None:
        self._image = image
        self._memory = memory
        self.name = f"runner-test-{uuid.uuid4().hex[:12]}"
        self._root = Path(tempfile.mkdtemp(prefix="runner-test-"))
        self._root.chmod(0o755)
        self.workspace = self._root / "workspace"
        self.workspace.mkdir()
        (self.workspace / "memo").mkdir()
        (self.workspace / "memo" / "NOTES.md").write_text("remember\n")
        os.chown(self.workspace, UID, UID)
        self.run_dir = self._root / "run"
        self.secret = mint_secret()
        self._was_heard = False

    @asynccontextmanager
    async def connected(self, env: dict[str, str] | None = None) -> AsyncGenerator[RunnerClient]:
        async with self.listening(env) as listener:
            with anyio.fail_after(HANG_S):
                await listener.client.wait_connected()
            yield listener.client

    @asynccontextmanager
    async def listening(self, env: dict[str, str] | None = None, proxy: int = 0) -> AsyncGenerator[RunnerListener]:
        async with RunnerListener(
            self.run_dir, self.secret, uid=UID, gid=UID, env=env or {}, proxy=proxy, is_adoption=self._was_heard
        ) as listener:
            if not self._was_heard:
                await anyio.to_thread.run_sync(self._launch)
                self._was_heard = True
            yield listener

    def _launch(self) -> None:
        mounts = [
            f"{self.workspace}:/workspace",
            f"{self.workspace / 'memo'}:/workspace/memo:ro",
            f"{self.run_dir}:{RUN_TARGET}:ro",
            f"{RUNNER_DIR}:{RUNNER_TARGET}:ro",
        ]
        command = ["docker", "run", "--detach", "--name", self.name, "--network", "none", "--read-only"]
        command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", f"{UID}:{UID}"]
        command += ["--pids-limit", str(PIDS), "--memory", self._memory, "--memory-swap", self._memory]
        command += ["--tmpfs", "/tmp:size=32m,mode=1777", "--tmpfs", "/var/tmp:size=32m,mode=1777,exec"]
        for mount in mounts:
            command += ["--volume", mount]
        subprocess.run([*command, self._image, *RUNNER_COMMAND], check=True, stdout=subprocess.DEVNULL)

    def life(self) -> str:
        """Return what identifies this run of the container, and whether it still runs."""
        command = ["docker", "inspect", "--format", "{{.Id}} {{.State.StartedAt}} {{.State.Running}}", self.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def remove(self) -> None:
        subprocess.run(["docker", "rm", "--force", "--volumes", self.name], check=False, capture_output=True)
        shutil.rmtree(self._root)
