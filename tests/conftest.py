"""Fixtures for every test: the event loop, an engine that answers, the agent image."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import docker
import pytest
from hypothesis import HealthCheck, settings

from memo.token_tables import DOWNLOAD_VARIABLE
from sandboxd.image import default_image, variant_image
from scripts import engine
from scripts.token_tables import TABLES
from tests.engines import CannotServe, Podman, PrivateEngine, SecondDocker, gvisor

# Examples are drawn and run on machines of any load, so nothing here depends on how long that takes.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

# No test downloads token tables: those that `make tables` fetched are used. The programs that tests start inherit this.
os.environ[DOWNLOAD_VARIABLE] = "0"
if TABLES.is_dir():
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(TABLES))

AnEngine = TypeVar("AnEngine", bound=PrivateEngine)
T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that uses the engine without the mark: `make check` would run it without an engine."""
    fixtures_of = {item: getattr(item, "fixturenames", ()) for item in items}
    unmarked = [
        item.nodeid for item in items if "engine_socket" in fixtures_of[item] and not item.get_closest_marker("engine")
    ]
    if unmarked:
        raise pytest.UsageError(f"cannot collect {', '.join(unmarked)}: needs an engine; mark it pytest.mark.engine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers `-n auto` starts: two for each core, because tests wait about half of their time."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def engine_socket() -> str:
    """The address of an engine that answers, as `unix:///…`."""
    found = engine.find()
    if found is None:
        pytest.fail("cannot reach a container engine: run `make engine`", pytrace=False)
    return found.address


@pytest.fixture(scope="session")
def docker_client(engine_socket: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=engine_socket, timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def agent_image(docker_client: docker.DockerClient) -> str:
    """The tag of the default image, which the engine has."""
    tag = default_image()
    if not docker_client.images.list(name=tag):
        pytest.fail(f"cannot find {tag} in the engine: run `make image`", pytrace=False)
    return tag


@pytest.fixture(scope="session")
def interpreter_image(docker_client: docker.DockerClient) -> str:
    """The tag of the variant `interpreter`, which the engine has."""
    tag = variant_image("interpreter")
    if not docker_client.images.list(name=tag):
        pytest.fail(f"cannot find {tag} in the engine: run `make image IMAGE=interpreter`", pytrace=False)
    return tag


@pytest.fixture(scope="session")
def saved_image(agent_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The default image as a file that other engines can load."""
    file = tmp_path_factory.mktemp("image") / "image.tar"
    subprocess.run(["docker", "save", "-o", file, agent_image], check=True, timeout=120)
    yield file
    file.unlink()


@pytest.fixture(scope="session")
def podman(saved_image: Path, agent_image: str) -> Iterator[Podman]:
    """Podman with the default image in it; skips where this host cannot run it."""
    with _serving(Podman, saved_image) as engine:
        _skip_unless(lambda: engine.try_container(agent_image))
        yield engine


@pytest.fixture(scope="session")
def gvisor_docker(saved_image: Path, agent_image: str) -> Iterator[SecondDocker]:
    """A dockerd that offers gVisor under the name `runsc`; skips where this host cannot run it."""
    with _serving(gvisor, saved_image) as engine:
        _skip_unless(lambda: engine.try_container(agent_image, "runsc"))
        yield engine


@contextmanager
def _serving(make: Callable[[], AnEngine], image: Path) -> Iterator[AnEngine]:
    engine = _skip_unless(make)
    try:
        _skip_unless(engine.start)
        engine.load(image)
        yield engine
    finally:
        engine.stop()


def _skip_unless(step: Callable[[], T]) -> T:
    try:
        return step()
    except CannotServe as reason:
        pytest.skip(str(reason))
