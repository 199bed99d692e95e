"""Find a container engine that answers, or, as root on Debian and Ubuntu, install and start one.

An engine counts only if it answers on its socket; a client program or a pid file proves nothing. An engine that already
answers is not changed.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxd import debian
from sandboxd.progress import SetupError, run_step, say
from scripts.verb import main

_PROBE_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 60.0
_PACKAGES = ["docker.io", "iptables", "bubblewrap"]
_PID_FILES = {
    Path("/var/run/docker.pid"): "dockerd",
    Path("/var/run/docker/containerd/containerd.pid"): "containerd",
}
_LOG = Path("/var/log/sandboxd-dockerd.log")
# Our containers have no network, so an engine without one is enough. Tried in this order.
_ATTEMPTS: tuple[tuple[str, ...], ...] = ((), ("--iptables=false",), ("--iptables=false", "--bridge=none"))


@dataclass(frozen=True, slots=True)
class FoundEngine:
    address: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} at {self.address}"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_PROBE_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def addresses() -> Iterator[str]:
    """Yield the addresses where an engine may answer; only DOCKER_HOST if that is set."""
    if host := os.environ.get("DOCKER_HOST"):
        yield host
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    yield "unix:///var/run/docker.sock"
    if not _same("/var/run", "/run"):
        yield "unix:///run/docker.sock"
    if runtime:
        yield f"unix://{runtime}/docker.sock"
        yield f"unix://{runtime}/podman/podman.sock"
    yield "unix:///run/podman/podman.sock"


def find() -> FoundEngine | None:
    """Return the first engine that answers, or None."""
    return next((found for found in map(ask, addresses()) if found), None)


def ask(address: str) -> FoundEngine | None:
    """Return the engine that answers at this address, or None if nothing does."""
    try:
        answer = _version(address)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    name = "podman" if "podman" in str(answer.get("Components")).lower() else "docker"
    return FoundEngine(address, name, str(answer["Version"]))


def _version(address: str) -> dict[str, object]:
    scheme, _, rest = address.partition("://")
    connection: http.client.HTTPConnection
    if scheme == "unix":
        connection = _UnixConnection(rest)
    elif scheme == "tcp" and not os.environ.get("DOCKER_TLS_VERIFY"):
        connection = http.client.HTTPConnection(rest.rstrip("/"), timeout=_PROBE_TIMEOUT_S)
    else:
        # TLS and ssh need the client program, which has the keys.
        command = ["docker", "version", "--format", "{{json .Server}}"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return _object(asked.stdout)
    try:
        connection.request("GET", "/version")
        return _object(connection.getresponse().read().decode())
    finally:
        connection.close()


def _object(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict) or "Version" not in value:
        raise ValueError("not an engine's answer")
    return value


def ensure() -> FoundEngine:
    """Return an engine that answers; install and start one if that is possible here."""
    if found := find():
        return found
    _explain_why_not()
    if shutil.which("dockerd", path=_root_path()) is None:
        debian.install(_PACKAGES)
        # The package may have started its own service.
        if found := find():
            return found
    return start()


def _explain_why_not() -> None:
    """Raise SetupError with the reason if this script cannot start an engine."""
    if host := os.environ.get("DOCKER_HOST"):
        raise SetupError(f"cannot reach the engine that DOCKER_HOST names: {host}", "start it, or unset DOCKER_HOST")
    for address in addresses():
        path = Path(address.removeprefix("unix://"))
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise SetupError(
                f"cannot use the engine at {path}: permission denied",
                "sudo usermod -aG docker $USER, then log in again",
            )
    if not debian.is_root():
        raise SetupError(
            "cannot start a container engine: none answers and only root may start one",
            "start Docker or rootless Podman, or run `sudo make engine` once",
        )
    if shutil.which("dockerd", path=_root_path()) is None and not debian.is_debian():
        raise SetupError(
            "cannot install a container engine: this is neither Debian nor Ubuntu",
            "install and start Docker or Podman, then try again",
        )


def start() -> FoundEngine:
    """Start the installed dockerd, detached from make, and wait until it answers."""
    if Path("/run/systemd/system").exists():
        run_step("systemctl start docker", ["systemctl", "start", "docker"], cannot="cannot start the docker service")
        if found := find():
            return found
        raise SetupError("cannot reach Docker although its service is running", "journalctl -u docker")
    if _live_pid(Path("/var/run/docker.pid"), "dockerd") is not None:
        say("dockerd is already starting")
        if found := _await_answer(None):
            return found
        raise SetupError(
            "cannot use the running dockerd: it does not answer on its socket", "stop that process, then `make engine`"
        )
    _mount_cgroups()
    for options in _ATTEMPTS:
        for path, program in _PID_FILES.items():
            if path.exists() and _live_pid(path, program) is None:
                path.unlink()  # left by a crash; dockerd would refuse to start if the pid has been reused
        log_start = _LOG.stat().st_size if _LOG.exists() else 0
        say(" ".join(["starting dockerd", *options, f"(log: {_LOG})"]))
        if found := _await_answer(_spawn(options)):
            if options:
                say("docker runs without firewall rules: containers have no network here, and sandboxes need none")
            return found
        complaint = _complaint(log_start)
        if not any(word in complaint for word in ("iptables", "nf_tables", "network controller", "bridge")):
            break
    raise SetupError(f"cannot start dockerd: {complaint}", f"read the end of {_LOG}")


def _spawn(options: Sequence[str]) -> subprocess.Popen[bytes]:
    _LOG.parent.mkdir(parents=True, exist_ok=True)
    with _LOG.open("ab") as log:
        return subprocess.Popen(
            ["dockerd", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,  # Ctrl-C in make must not reach the engine
            env={**os.environ, "PATH": _root_path()},
        )


def _await_answer(process: subprocess.Popen[bytes] | None) -> FoundEngine | None:
    """Wait until the engine answers; None if its process ends or the time is up. Polling is fine during set-up."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := find():
            return found
        if process is not None and process.poll() is not None:
            return None
        time.sleep(0.5)
    if process is not None:
        process.terminate()
        process.wait()
    return None


def _complaint(log_start: int) -> str:
    """Return dockerd's last error message."""
    with _LOG.open("rb") as log:
        log.seek(log_start)
        lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if "failed to start" in line or "level=fatal" in line]
    return (fatal or lines or ["it exited without a message"])[-1].strip()


def _mount_cgroups() -> None:
    """Mount cgroups, without which an engine cannot set limits. A host without an init system has none mounted."""
    if " cgroup" not in Path("/proc/mounts").read_text() and Path("/sys/fs/cgroup").is_dir():
        command = ["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"]
        run_step("mounting cgroups", command, cannot="cannot mount cgroups", advice="run this as root, on the host")


def _live_pid(path: Path, program: str) -> int | None:
    """Return the pid in this file if it is a live process of this program."""
    try:
        pid = int(path.read_text())
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return pid if name == program else None


def _root_path() -> str:
    """Return root's login PATH: `su` and cron leave out sbin, where dockerd and iptables are."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _verb(_: Sequence[str]) -> int:
    say(f"engine: {ensure()}")
    return 0


if __name__ == "__main__":
    main(_verb)
