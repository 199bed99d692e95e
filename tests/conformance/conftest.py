"""The engines under test, each with a clean instance label, and helpers to query them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import anyio.from_thread
import pytest

from sandboxd.engine.bubblewrap import BubblewrapEngine
from sandboxd.engine.bubblewrap.processes import read_stat
from sandboxd.engine.docker import DockerEngine
from sandboxd.engine.protocol import LABEL_INSTANCE, LABEL_SANDBOX, Container, ContainerSpec, Engine
from sandboxd.image import default_image
from sandboxd.limits import Limits
from tests.conformance.shortcomings import shortcoming_of
from tests.engines import PrivateEngine
from tests.world.fake_engine import NAME as FAKE
from tests.world.fake_engine import ContainerTable, FakeEngine

SpecMaker = Callable[..., ContainerSpec]
EngineMaker = Callable[[], Engine]
Freezer = Callable[[Container, bool], object]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _engine_of(item) == FAKE and item.get_closest_marker("isolation")]
    if left_out:  # harmful on the host itself: fork bombs, memory hogs and kills
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        engine = _engine_of(item)
        if engine and (found := shortcoming_of(engine, getattr(item, "originalname", item.name))) is not None:
            item.add_marker(pytest.mark.xfail(reason=found.what, strict=True))


def _engine_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("engine_name")


ENGINES = ["docker", "bubblewrap", "podman", "gvisor"]
"""The engines that users can choose. The fake engine has the same contract, but isolates nothing."""
GVISOR_LIMITS = Limits(memory_mb=512, pids=1024)
"""gVisor's own threads count against the limits of the container that it runs."""


@pytest.fixture(params=[*(pytest.param(name, marks=pytest.mark.engine) for name in ENGINES), FAKE])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def api_url(engine_name: str, request: pytest.FixtureRequest) -> str:
    """Where the engine answers, for all but bubblewrap."""
    fixtures = {"docker": "engine_socket", "podman": "podman", "gvisor": "gvisor_docker"}
    found = request.getfixturevalue(fixtures[engine_name])
    return found.url if isinstance(found, PrivateEngine) else str(found)


@pytest.fixture
def make_engine(
    engine_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EngineMaker:
    """Make one more engine object over the same containers, as a restarted daemon does."""
    state_dir = tmp_path_factory.mktemp(engine_name)
    if engine_name == FAKE:
        table = request.getfixturevalue("table")
        return lambda: FakeEngine(table)
    if engine_name == "bubblewrap":
        return lambda: BubblewrapEngine(state_dir)
    url = request.getfixturevalue("api_url")
    return lambda: DockerEngine(state_dir, url)


@pytest.fixture
def table(tmp_path: Path) -> ContainerTable:
    """The containers of the fake engine."""
    return ContainerTable(tmp_path / "containers")


@pytest.fixture
def freeze(engine_name: str, request: pytest.FixtureRequest) -> Freezer:
    """Return a function that freezes or resumes a container without the engine object."""
    if engine_name == "bubblewrap":
        return _stop
    if engine_name == FAKE:
        table = request.getfixturevalue("table")
        return lambda container, frozen: anyio.from_thread.run_sync(table.freeze, container.id, frozen)
    url = request.getfixturevalue("api_url")
    return lambda container, frozen: docker_at(url, "pause" if frozen else "unpause", container.id)


def _stop(container: Container, frozen: bool) -> None:
    """Stop or resume PID 1, and wait until the kernel has done so."""
    assert container.pid is not None
    os.kill(container.pid, signal.SIGSTOP if frozen else signal.SIGCONT)
    for _ in range(1000):
        stat = read_stat(container.pid)
        if stat is not None and stat.is_stopped == frozen:
            return
        time.sleep(0.01)
    pytest.fail(f"process {container.pid} does not change its state")


def docker_at(url: str, *arguments: str, stdin: bytes = b"") -> str:
    """Run the Docker client on this engine."""
    command = ["docker", "-H", url, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def image(engine_name: str, request: pytest.FixtureRequest) -> str:
    if engine_name == FAKE:
        return default_image(FAKE)
    agent_image: str = request.getfixturevalue("agent_image")
    return "host" if engine_name == "bubblewrap" else agent_image


@pytest.fixture
def instance() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
async def engine(make_engine: EngineMaker, instance: str) -> AsyncIterator[Engine]:
    engine = make_engine()
    yield engine
    for container in await engine.find({LABEL_INSTANCE: instance}):
        await engine.remove(container.id)
    await engine.aclose()


@pytest.fixture
def make_spec(instance: str, image: str, engine_name: str) -> SpecMaker:
    """Make a spec for a small command; every keyword replaces a field."""

    def make(*command: str, **changes: object) -> ContainerSpec:
        sandbox = uuid.uuid4().hex
        spec = ContainerSpec(
            name=f"sandboxd-{sandbox}",
            image=image,
            command=command or ("sleep", "600"),
            uid=10001,
            gid=10001,
            labels={LABEL_INSTANCE: instance, LABEL_SANDBOX: sandbox},
            mounts=(),
            limits=GVISOR_LIMITS if engine_name == "gvisor" else Limits(memory_mb=128, pids=64),
            runtime="runsc" if engine_name == "gvisor" else None,
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def shared_dir(tmp_path: Path) -> Path:
    """A host directory that the container's user may write."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o777)
    return directory
