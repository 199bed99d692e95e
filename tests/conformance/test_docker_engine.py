"""What only an engine behind an API can get wrong: its flags, its errors, its stream, its partly created containers."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from docker import APIClient

from sandboxd.engine import seccomp
from sandboxd.engine.docker import DockerEngine
from sandboxd.engine.docker.engine import LAUNCHES_AT_ONCE
from sandboxd.engine.protocol import LABEL_INSTANCE, Engine, Mount
from sandboxd.engine.spec import render_container
from sandboxd.errors import EngineRefused, EngineUnavailable
from sandboxd.limits import Limits
from sandboxd.sandboxes.runtime_probe import PROBE_COMMAND, RuntimeProbe
from tests.conformance.conftest import SpecMaker, docker_at
from tests.conformance.deaths import listening
from tests.conformance.proxy import CuttableProxy

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


DockerClient = Callable[..., str]


only_docker = pytest.mark.parametrize("engine_name", ["docker"])


@pytest.fixture(params=["docker", "podman"])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def docker(api_url: str) -> DockerClient:
    """The Docker client on the engine under test."""
    return partial(docker_at, api_url)


@only_docker  # Podman's inspection shows its own settings, not the requested ones
async def test_inspection_matches_the_hardening_table_field_by_field(
    docker: DockerClient, engine: Engine, make_spec: SpecMaker, tmp_path: Path
) -> None:
    mounts = (Mount(tmp_path, "/workspace", False), Mount(tmp_path, "/skills", True))
    spec = make_spec(mounts=mounts, env={"A": "1"}, limits=Limits(memory_mb=96, cpus=0.5, pids=40, disk_mb=50))
    container = await engine.launch(spec)
    (seen,) = json.loads(await anyio.to_thread.run_sync(docker, "inspect", container.id))
    for mount in seen["HostConfig"]["Mounts"]:
        mount.setdefault("ReadOnly", False)
    asked = render_container(spec, seccomp.profile_text())
    host_config = asked.pop("HostConfig")
    assert {name: seen["HostConfig"].get(name) for name in host_config} == host_config
    environment, labels = asked.pop("Env"), asked.pop("Labels")
    assert {name: seen["Config"].get(name) for name in asked} == asked
    assert set(environment) <= set(seen["Config"]["Env"])  # an image sets its own, such as PATH
    assert labels.items() <= seen["Config"]["Labels"].items()
    granted = ("CapAdd", "Devices", "DeviceCgroupRules", "Binds", "VolumesFrom", "GroupAdd", "PortBindings", "Links")
    assert [name for name in granted if seen["HostConfig"].get(name)] == []
    assert [mount["Destination"] for mount in seen["Mounts"] if mount["RW"]] == ["/workspace"]
    assert list(seen["NetworkSettings"]["Networks"]) == ["none"]


async def test_more_cpus_than_the_host_has_are_accepted(engine: Engine, make_spec: SpecMaker) -> None:
    assert (await engine.launch(make_spec(limits=Limits(cpus=1024)))).running


async def test_docker_kill_and_stop_are_announced_as_killed(
    docker: DockerClient, engine: Engine, make_spec: SpecMaker
) -> None:
    catch = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); time.sleep(600)"
    async with listening(engine) as book:
        killed = await engine.launch(make_spec())
        stopped = await engine.launch(make_spec("python3", "-c", catch))
        await anyio.to_thread.run_sync(docker, "kill", killed.id)
        await anyio.to_thread.run_sync(docker, "stop", "-t", "5", stopped.id)
        assert (await book.death_of(killed.id)).cause == "killed"
        assert (await book.death_of(stopped.id)).cause == "killed"


@pytest.fixture
def proxy(tmp_path: Path, api_url: str) -> Iterator[CuttableProxy]:
    proxy = CuttableProxy(tmp_path / "engine.sock", api_url)
    yield proxy
    proxy.cut()


async def test_lost_stream_is_reattached_and_no_death_is_missed(
    make_spec: SpecMaker, engine: Engine, proxy: CuttableProxy, tmp_path: Path
) -> None:
    proxy.serve()
    through = DockerEngine(tmp_path, proxy.url)
    async with listening(through) as book:
        before = await through.launch(make_spec("sh", "-c", "exit 7"))
        assert (await book.death_of(before.id)).exit_code == 7
        survivor = await engine.launch(make_spec())
        await anyio.to_thread.run_sync(proxy.cut)
        with pytest.raises(EngineUnavailable, match="cannot inspect: the engine does not answer"):
            await through.inspect(before.id)
        meanwhile = await engine.launch(make_spec("sh", "-c", "exit 8"))
        proxy.serve()
        await book.attached_times(2)
        assert (await book.death_of(meanwhile.id)).exit_code == 8
        await engine.remove(survivor.id)
        assert (await book.death_of(survivor.id)).cause == "killed"
        assert [death.container_id for death in book.deaths].count(before.id) == 1
    await through.aclose()


@only_docker
async def test_listening_may_start_before_the_engine_does(
    make_spec: SpecMaker, engine: Engine, proxy: CuttableProxy, tmp_path: Path
) -> None:
    through = DockerEngine(tmp_path, proxy.url)
    events = through.events()
    proxy.serve()
    with anyio.fail_after(30):
        await anext(events)
        container = await engine.launch(make_spec("sh", "-c", "exit 9"))
        async for event in events:  # other programs may use this engine too
            if getattr(event, "container_id", None) == container.id:
                break
    assert getattr(event, "exit_code", None) == 9
    await through.aclose()


async def test_closing_the_engine_ends_its_listeners_and_threads(api_url: str, tmp_path: Path) -> None:
    listener = DockerEngine(tmp_path, api_url)
    before = {thread.name for thread in threading.enumerate()}
    events = listener.events()
    await anext(events)
    await listener.aclose()
    with anyio.fail_after(30):
        assert [event async for event in events] == []
    assert "engine-events" not in {thread.name for thread in threading.enumerate()} - before


@only_docker
async def test_missing_engine_is_reported_as_unavailable_by_every_verb(make_spec: SpecMaker, tmp_path: Path) -> None:
    nobody = DockerEngine(tmp_path, f"unix://{tmp_path}/absent.sock")
    for call in (
        nobody.launch(make_spec()),
        nobody.inspect("x"),
        nobody.find({LABEL_INSTANCE: "x"}),
        nobody.remove("x"),
        nobody.stats("x"),
        nobody.has_image("x"),
        nobody.diagnose(),
    ):
        with pytest.raises(EngineUnavailable, match="cannot") as error:
            await call
        assert error.value.retryable
    await nobody.aclose()


async def test_missing_image_is_named_with_the_next_step(engine: Engine, make_spec: SpecMaker) -> None:
    with pytest.raises(EngineRefused, match="image sandboxd-absent:1 is not in the engine; `sandboxd image build`"):
        await engine.launch(make_spec(image="sandboxd-absent:1"))


@pytest.fixture
def empty_image(docker: DockerClient) -> Iterator[str]:
    name = f"sandboxd-test-{uuid.uuid4().hex}:empty"
    docker("import", "-", name, stdin=bytes(10240))
    yield name
    docker("rmi", "-f", name)


async def test_image_without_python_is_refused_with_a_clear_error(
    engine: Engine, make_spec: SpecMaker, empty_image: str, instance: str
) -> None:
    for program in ("python3", "/usr/bin/python3"):
        with pytest.raises(EngineRefused, match=r"has no python3; the runner needs Python 3\.9"):
            await engine.launch(make_spec(program, "-c", "pass", image=empty_image))
    assert await engine.find({LABEL_INSTANCE: instance}) == []


@pytest.fixture
def make_image(docker: DockerClient, api_url: str, agent_image: str) -> Iterator[Callable[..., str]]:
    """Make images of the agent image with further lines of a Dockerfile."""
    made: list[str] = []

    def make(*lines: str) -> str:
        tag = uuid.uuid4().hex
        made.append(f"sandboxd-test:{tag}")
        container = docker("create", agent_image, "true")
        with closing(APIClient(base_url=api_url, version="auto")) as client:
            client.commit(container, repository="sandboxd-test", tag=tag, changes=list(lines))
        docker("rm", "-f", container)
        return made[-1]

    yield make
    for name in made:
        docker("rmi", "-f", name)


async def test_image_that_declares_an_unbounded_volume_is_refused(
    docker: DockerClient, engine: Engine, make_spec: SpecMaker, make_image: Callable[..., str], instance: str
) -> None:
    volumes = await anyio.to_thread.run_sync(docker, "volume", "ls", "-q")
    with pytest.raises(EngineRefused, match="declares a volume at /data"):
        await engine.launch(make_spec(image=make_image("VOLUME /data")))
    assert await engine.find({LABEL_INSTANCE: instance}) == []
    assert await anyio.to_thread.run_sync(docker, "volume", "ls", "-q") == volumes


async def test_entry_point_of_an_image_does_not_run_instead_of_ours(
    engine: Engine, make_spec: SpecMaker, make_image: Callable[..., str], engine_name: str
) -> None:
    health = ["HEALTHCHECK CMD exit 1"] if engine_name == "docker" else []  # Podman cannot commit one
    image = make_image('ENTRYPOINT ["sh", "-c", "exit 66"]', *health)
    async with listening(engine) as book:
        container = await engine.launch(make_spec("sh", "-c", "exit 5", image=image))
        assert (await book.death_of(container.id)).exit_code == 5


async def test_error_never_repeats_environment_or_labels(engine: Engine, make_spec: SpecMaker, tmp_path: Path) -> None:
    secret = uuid.uuid4().hex
    mounts = (Mount(tmp_path, secret, True),)  # refused with a message that repeats it
    with pytest.raises(EngineRefused, match=r"the engine refused: .*…") as refused:
        await engine.launch(make_spec(mounts=mounts, env={"TOKEN": secret}))
    assert secret not in str(refused.value)


@only_docker
async def test_launches_are_admitted_two_at_a_time_and_all_succeed(
    engine: Engine, make_spec: SpecMaker, instance: str
) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(LAUNCHES_AT_ONCE * 3):
            tasks.start_soon(engine.launch, make_spec())
    found = await engine.find({LABEL_INSTANCE: instance})
    assert len(found) == LAUNCHES_AT_ONCE * 3
    assert all(container.running for container in found)


async def test_container_that_is_removed_from_outside_is_announced(
    docker: DockerClient, engine: Engine, make_spec: SpecMaker
) -> None:
    async with listening(engine) as book:
        container = await engine.launch(make_spec())
        await anyio.to_thread.run_sync(docker, "rm", "-f", container.id)
        assert (await book.death_of(container.id)).cause == "killed"
    assert await engine.inspect(container.id) is None


@only_docker
async def test_a_runtime_is_tried_from_a_data_directory_with_a_long_path(
    engine: Engine, make_spec: SpecMaker, tmp_path: Path
) -> None:
    directory = tmp_path / ("long" * 30) / "probe"
    spec = make_spec(command=PROBE_COMMAND, mounts=(Mount(directory, "/probe", True),))
    with anyio.fail_after(60):
        assert await RuntimeProbe("runc", spec, directory).run(engine, 30)
