"""What every test may ask for: the event loop, an engine that answers, the agent image."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from sandboxd.image import default_image
from scripts import engine


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
