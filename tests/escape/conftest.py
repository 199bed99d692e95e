"""Two containers for the probes: a sandbox created through the API, and one that is weak on purpose."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import pytest

from sandboxd.client import Client
from tests.running import RunningDaemon

INSIDE = Path(__file__).parent / "inside"
SECRET_ENV = "SANDBOXD_RUNNER_SECRET"
MILK = "remember the milk\n"

# PID 1 hides nothing, and another user's process runs next to it.
WEAK_STAND_IN = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
neighbour = subprocess.Popen(["sleep", "600"], user=1)
code = subprocess.call([sys.executable, "-B", "/probe/probes.py", *sys.argv[1:]])
neighbour.kill()
neighbour.wait()
sys.exit(code)
"""


class Outcome(TypedDict):
    ok: bool
    detail: str


Report = dict[str, Outcome]


@dataclass(frozen=True, slots=True)
class Stage:
    """The host side of a container for probes, with a text that must not be seen inside."""

    workspace: Path
    memo: Path
    canary: str

    def arguments(self) -> list[str]:
        return ["--backwards", self.canary[::-1]]


@pytest.fixture(scope="module")
def make_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    top = tmp_path_factory.mktemp("probed")
    stage = Stage(top / "workspace", top / "memo", f"canary-{uuid.uuid4().hex}")
    for directory in (stage.workspace, stage.workspace / "memo", stage.memo):
        directory.mkdir()
        directory.chmod(0o777)
    for name in ("NOTES.md", "USER.md"):
        (stage.memo / name).write_text("remember the milk\n")
        (stage.memo / name).chmod(0o666)
    yield stage
    assert {path.name: path.read_text() for path in stage.memo.iterdir()} == {
        "NOTES.md": "remember the milk\n",
        "USER.md": "remember the milk\n",
    }


@pytest.fixture(scope="module")
def probe_report(engine_socket: str, agent_image: str) -> Report:
    """The results of the probes in a sandbox created through the API, as every agent gets it."""
    return probe_sandbox("docker", agent_image)


def probe_sandbox(engine: str, image: str, **settings: object) -> Report:
    names = {name: f"{name}{uuid.uuid4().hex}" for name in ("tenant", "session", "user", "agent", "canary")}
    daemon = RunningDaemon(engine=engine, image=image, token_file=names["canary"], **settings)  # type: ignore[arg-type]
    try:
        daemon.start(environment={SECRET_ENV: names["canary"]})
        with Client(daemon.socket, tenant=names["tenant"]) as client:
            session = names["session"]
            client.ensure_sandbox(session, user=names["user"], agent=names["agent"])
            client.write_memo(session, "NOTES.md", MILK)
            client.write_memo(names["user"], "USER.md", MILK, scope="user")
            (mirror,) = (daemon.data / "mirrors").iterdir()
            for path in [mirror, *mirror.rglob("*")]:  # so that only the mount prevents a write
                with suppress(FileNotFoundError):  # a manifest being written
                    path.chmod(0o777 if path.is_dir() else 0o666)
            for file in INSIDE.glob("*.py"):
                client.write_file(session, f"/workspace/probe/{file.name}", file.read_bytes())
            hidden = [word for name in names.values() for word in ("--backwards", name[::-1])]
            done = client.exec(session, ["python3", "-B", "/workspace/probe/probes.py", *hidden], timeout_s=110)
            assert done.exit_code == 0, done.stderr
            assert {path.read_text() for path in mirror.rglob("*.md")} == {MILK}
            assert {path.name for path in mirror.rglob("*")} == {
                *("session", "NOTES.md", "tool-results", "user", "USER.md", ".manifest.json")
            }
            client.destroy_sandbox(session)
        report: Report = json.loads(done.stdout)
        return report
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def weak_report(make_stage: Stage, engine_socket: str, agent_image: str) -> Report:
    """The results of the probes where almost everything is open, except the host's processes, which the probes would
    touch."""
    command = [
        *("docker", "run", "--rm", "--user", "0:0", "--network", "host", "--workdir", "/workspace"),
        # As open as --privileged, except for the one capability that a host inside a virtual machine may not have.
        *("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined"),
        *("--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined"),
        *("--env", f"{SECRET_ENV}={make_stage.canary}"),
        *("--volume", f"{engine_socket.removeprefix('unix://')}:/var/run/docker.sock"),
        *("--volume", f"{make_stage.workspace}:/workspace", "--volume", f"{make_stage.memo}:/workspace/memo"),
        *("--volume", f"{INSIDE}:/probe:ro", "--entrypoint", "python3", agent_image),
        *("-c", WEAK_STAND_IN, *make_stage.arguments()),
    ]
    done = subprocess.run(command, capture_output=True, timeout=110, check=True)
    report: Report = json.loads(done.stdout)
    return report
