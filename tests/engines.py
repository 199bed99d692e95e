"""Engines that belong to a test session: Podman, and a second dockerd. The host's engine is never touched.

Each has its own directory for images, containers and its socket; `stop` ends it and leaves no process, mount or file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scripts import engine
from scripts.tools import find_program

START_S = 60
STOP_S = 60
STORAGE_MB = 2048
RUNC = Path(__file__).parent / "runc_within_limits.py"

PODMAN_CONFIG = """
[engine]
runtime = "runc-within-limits"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
[engine.runtimes]
runc-within-limits = ["{runc}"]
[network]
network_config_dir = "{root}/networks"
"""


class CannotServe(Exception):
    """This host cannot run the engine; the message says why."""


class PrivateEngine:
    """Owns a directory and the process that serves an engine's API from it."""

    program: str

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise CannotServe(f"only root can serve {self.program} with roots of its own")
        if find_program(self.program) is None:
            raise CannotServe(f"{self.program} is not installed; run `make tools` as root on Debian")
        self.root = Path(tempfile.mkdtemp(prefix="sandboxd-engine-"))
        # In memory: filling and removing a directory of image files takes half a minute on some disks.
        mount = ["mount", "-t", "tmpfs", "-o", f"size={STORAGE_MB}m,mode=0700", "sandboxd-engine", str(self.root)]
        if subprocess.run(mount, timeout=STOP_S).returncode != 0:
            self.root.rmdir()
            raise CannotServe(f"no tmpfs can be mounted here for the storage of {self.program}")
        self.url = f"unix://{self.root}/engine.sock"
        self.log = self.root / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # It ends with the test session, even if that is killed.
        command = ["setpriv", "--pdeathsig", "SIGTERM", *self.command()]
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,  # Podman's helpers leave files where it was started
                start_new_session=True,
                env={**os.environ, "PATH": path, **self.environment()},
            )
        deadline = time.monotonic() + START_S
        while engine.ask(self.url) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise CannotServe(f"{self.program} does not start: {self._last_words()}")
            time.sleep(0.05)

    def load(self, image: Path) -> None:
        """Put a saved image into its storage."""
        self.docker("load", "-i", str(image))

    def try_container(self, image: str, runtime: str | None = None) -> None:
        """Raise CannotServe unless a plain container runs, without any of our code."""
        options = ["--network", "none", *(["--runtime", runtime] if runtime else [])]
        command = ["docker", "-H", self.url, "run", "--rm", *options, image, "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        if done.returncode != 0:
            raise CannotServe(f"{runtime or self.program} runs no container here: {done.stderr.strip()[:300]}")

    def docker(self, *arguments: str, check: bool = True) -> str:
        """Run the Docker client on this engine."""
        command = ["docker", "-H", self.url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=check).stdout

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End its process, and wait until it has ended."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(STOP_S)
            self.process = None

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            if containers := self.docker("ps", "-aq", check=False).split():
                self.docker("rm", "-f", *containers, check=False)
            self.end(signal.SIGKILL)  # an orderly shutdown would be slow, and everything is removed now anyway
        deadline = time.monotonic() + STOP_S
        while (family := _family_of(str(self.root))) and time.monotonic() < deadline:
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for mount in reversed(self._mounts()):
            subprocess.run(["umount", mount], check=True, timeout=STOP_S)
        self.root.rmdir()

    def _mounts(self) -> list[str]:
        targets = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        return [target for target in targets if f"{target}/".startswith(f"{self.root}/")]

    def _last_words(self) -> str:
        return (self.log.read_text(errors="replace").strip().splitlines() or ["it says nothing"])[-1]


def _family_of(root: str) -> list[int]:
    """Return the processes whose command line names this directory, and what they have started."""
    parents: dict[int, int] = {}
    family: set[int] = set()
    for directory in [Path("/proc", name) for name in os.listdir("/proc") if name.isdecimal()]:
        with suppress(OSError):
            pid = int(directory.name)
            parents[pid] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if root.encode() in (directory / "cmdline").read_bytes():
                family.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family - {os.getpid()})


class Podman(PrivateEngine):
    """Podman's Docker-compatible socket."""

    program = "podman"

    def command(self) -> list[str]:
        (self.root / "containers.conf").write_text(PODMAN_CONFIG.format(root=self.root, runc=RUNC))
        roots = [f"--{name}={self.root}/{name}" for name in ("root", "runroot", "tmpdir")]
        return ["podman", *roots, "system", "service", "--time", "0", self.url]

    def environment(self) -> Mapping[str, str]:
        return {"CONTAINERS_CONF": f"{self.root}/containers.conf"}

    def stop(self) -> None:
        super().stop()
        for pattern in ("libpod_parent/conmon", "libpod_parent", "*/libpod_parent/conmon", "*/libpod_parent"):
            for group in Path("/sys/fs/cgroup").glob(pattern):
                with suppress(OSError):  # another Podman uses it
                    group.rmdir()


class SecondDocker(PrivateEngine):
    """A second dockerd on the host, without any network."""

    program = "dockerd"

    def __init__(self, runtimes: Mapping[str, Sequence[str]] | None = None) -> None:
        """`runtimes` maps the name of each additional runtime to its program and arguments."""
        super().__init__()
        self.runtimes = dict(runtimes or {})
        self._configure()

    def offer(self, runtimes: Mapping[str, Sequence[str]]) -> None:
        """Offer other runtimes from now on, without a restart."""
        self.runtimes = dict(runtimes)
        self._configure()
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def _configure(self) -> None:
        described = {name: {"path": words[0], "runtimeArgs": words[1:]} for name, words in self.runtimes.items()}
        (self.root / "daemon.json").write_text(json.dumps({"runtimes": described}))

    def start(self) -> None:
        """Start it; a killed dockerd leaves pid files of processes that have ended, or whose pids are reused."""
        for file in (self.root / "pid", self.root / "exec/containerd/containerd.pid"):
            file.unlink(missing_ok=True)
        super().start()

    def command(self) -> list[str]:
        return [
            *("unshare", "--net", "dockerd", "--host", self.url, "--config-file", f"{self.root}/daemon.json"),
            *("--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/exec"),
            *("--pidfile", f"{self.root}/pid", "--iptables=false", "--bridge=none"),
        ]


RUNSC_FLAGS = ("--platform=systrap", "--network=none", "--host-uds=open", "--file-access-mounts=shared")


def gvisor() -> SecondDocker:
    """Return a dockerd with gVisor runtimes: `runsc`, set up as documented, and two that cannot serve us."""
    runsc = find_program("runsc")
    if runsc is None:
        raise CannotServe("runsc is not installed; run `make tools` as root on Debian")
    without_sockets = [flag for flag in RUNSC_FLAGS if "host-uds" not in flag]
    stale = [*RUNSC_FLAGS[:-1], "--file-access-mounts=exclusive"]
    return SecondDocker(
        {
            "runsc": [runsc, *RUNSC_FLAGS],
            "runsc-without-sockets": [runsc, *without_sockets],
            "runsc-stale": [runsc, *stale],
        }
    )
