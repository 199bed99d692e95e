"""The engines under test, each with a clean instance label, and what a test needs to ask them."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.engine.docker import DockerEngine
from sandboxd.engine.protocol import LABEL_INSTANCE, LABEL_SANDBOX, ContainerSpec, Engine
from sandboxd.limits import Limits

SpecMaker = Callable[..., ContainerSpec]
EngineMaker = Callable[[], Engine]

ENGINES = ["docker"]
if importlib.util.find_spec("sandboxd.engine.bubblewrap") is not None:
    ENGINES.append("bubblewrap")


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_engine(engine_name: str, tmp_path_factory: pytest.TempPathFactory) -> EngineMaker:
    """Make one more engine object over the same containers, as a daemon that starts again does."""
    if engine_name == "docker":
        return DockerEngine
    from sandboxd.engine.bubblewrap import BubblewrapEngine

    state_dir = tmp_path_factory.mktemp("bubblewrap")
    return lambda: BubblewrapEngine(state_dir)


@pytest.fixture
def image(engine_name: str, agent_image: str) -> str:
    return agent_image if engine_name == "docker" else "host"


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
def make_spec(instance: str, image: str) -> SpecMaker:
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
            limits=Limits(memory_mb=128, pids=64),
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
