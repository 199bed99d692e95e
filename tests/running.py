"""A real daemon in its own process, which a test can start, kill and start again."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import anyio

from sandboxd.client import Client
from sandboxd.engine.bubblewrap import BubblewrapEngine
from sandboxd.engine.protocol import LABEL_INSTANCE
from tests.ordinary_user import ordinary_environment, public_python

READY_S = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class RunningDaemon:
    """Owns a data directory and the daemon process on it. `stop` leaves nothing behind, whatever happened."""

    def __init__(
        self,
        *,
        engine: str = "docker",
        uid: int | None = None,
        open_files: int | None = None,
        docker_host: str | None = None,
        **settings: object,
    ) -> None:
        """Take the user to run as, the hard limit on open files and the engine's address, if not the usual ones."""
        self._root = Path(tempfile.mkdtemp(prefix="sandboxd-test-"))
        self._root.chmod(0o711)
        self._uid = uid
        self._open_files = open_files
        self._docker_host = docker_host
        if uid is not None:
            os.chown(self._root, uid, uid)
        self.data = self._root / "data"
        self.socket = self._root / "d.sock"
        self.log = self._root / "daemon.log"
        self.settings = {"engine": engine, "pool": 0, **settings}
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, object] = {}

    def start(self, *, environment: Mapping[str, str] | None = None, **settings: object) -> Self:
        """Start it and wait until it says that it is ready."""
        self.launch(environment=environment, **settings)
        line = self._first_line()
        assert line, f"the daemon did not get ready:\n{self.log.read_text()[-4000:]}"
        self.ready = json.loads(line)
        return self

    def launch(self, *, environment: Mapping[str, str] | None = None, **settings: object) -> subprocess.Popen[bytes]:
        """Start it without waiting for anything."""
        values = {**self.settings, **settings, "data": self.data, "socket": self.socket}
        ours = {
            **(environment or {}),
            **{f"SANDBOXD_{name.upper()}": str(value) for name, value in values.items()},
            **({"DOCKER_HOST": self._docker_host} if self._docker_host else {}),
        }
        env = {**os.environ, **ours}
        identity: dict[str, Any] = {}
        python = sys.executable
        if self._uid is not None:
            identity = {"user": self._uid, "group": self._uid, "extra_groups": [], "cwd": "/"}
            env = {**ordinary_environment(), "HOME": str(self._root), **ours}
            python = public_python()
        program = "from sandboxd.daemon.process import main; from sandboxd.settings import Settings; main(Settings())"
        if self._open_files is not None:
            limit = (self._open_files // 2, self._open_files)
            program = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limit}); {program}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [python, "-c", program],
                env=env,
                stdout=subprocess.PIPE,
                stderr=log,
                **identity,
            )
        return self.process

    def kill(self) -> None:
        """Kill it with SIGKILL, like the out-of-memory killer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        code = self.process.wait(READY_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self) -> Client:
        return Client(socket=self.socket)

    def instance(self) -> str:
        return (self.data / "instance").read_text().strip()

    def containers(self) -> list[str]:
        """The ids of every container of this data directory that the engine lists, dead or alive."""
        if not (self.data / "instance").exists():
            return []
        return self.docker("ps", "-aq", "--no-trunc", "--filter", f"label=sandboxd.instance={self.instance()}").split()

    def docker(self, *args: str) -> str:
        """The engine's own client, to inspect the daemon's containers from outside the product."""
        return docker(*(("-H", self._docker_host) if self._docker_host else ()), *args)

    def mounts(self) -> list[str]:
        return mounts_below(self.data)

    def sandbox_files(self) -> list[str]:
        """Everything on disk that belongs to a sandbox."""
        found = []
        for name in ("run", "mirrors", "workspaces", "engine"):
            directory = self.data / name
            if directory.exists():
                found += [
                    str(path.relative_to(self.data)) for path in directory.iterdir() if "template" not in path.name
                ]
        return sorted(found)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
        self._remove_containers()
        unmount_below(self.data)
        mirrors = self.data / "mirrors"
        if mirrors.is_symlink():
            shutil.rmtree(mirrors.readlink().parent, ignore_errors=True)
        shutil.rmtree(self._root)

    def _remove_containers(self) -> None:
        if self.settings["engine"] != "bubblewrap":
            for container in self.containers():
                self.docker("rm", "-f", container)
        elif (self.data / "instance").exists():
            with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
                thread.submit(anyio.run, self._remove_bubblewrap_containers).result()

    async def _remove_bubblewrap_containers(self) -> None:
        engine = BubblewrapEngine(self.data / "engine")
        for container in await engine.find({LABEL_INSTANCE: self.instance()}):
            await engine.remove(container.id)
        await engine.aclose()

    def _first_line(self) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            readable, _, _ = select.select([self.process.stdout], [], [], 0.5)
            if readable:
                return self.process.stdout.readline()
        return b""


def mounts_below(directory: Path) -> list[str]:
    with open("/proc/self/mountinfo") as lines:
        return [line.split()[4] for line in lines if line.split()[4].startswith(str(directory))]


def unmount_below(directory: Path) -> None:
    """Unmount the workspaces that a data directory still has mounted."""
    for mount in reversed(mounts_below(directory)):
        subprocess.run(["umount", mount], check=False)


def docker(*args: str) -> str:
    """The engine's own client, to inspect containers from outside the product."""
    done = subprocess.run(["docker", *args], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def newest_event(client: Client) -> int:
    return max((event.id for event in client.events(follow=False)), default=0)


def wait_for_state(client: Client, session: str, state: str, *, after: int) -> None:
    """Follow the events until this session's sandbox reaches the state."""
    for event in client.events(after=after):
        if event.fields.get("session") == session and event.fields.get("state") == state:
            return
