"""The life of a sandbox through the API, on a real engine."""

from __future__ import annotations

import tarfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxd.client import Client
from sandboxd.errors import Conflict, EngineRefused, Gone, HostFull, NotFound, NotReady, SandboxdError, SandboxNotFound
from tests.running import RunningDaemon, docker, newest_event, wait_for_state

pytestmark = [pytest.mark.engine]


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    with suppress(NotFound):
        client.destroy_sandbox(name)


def test_fifty_concurrent_ensures_of_one_session_share_one_container(daemon: RunningDaemon, session: str) -> None:
    def ensure(_: int) -> str | None:
        with daemon.client() as client:
            return client.ensure_sandbox(session, user="ada").container

    before = set(daemon.containers())
    with ThreadPoolExecutor(50) as pool:
        made = set(pool.map(ensure, range(50)))
    assert len(made) == 1
    assert set(daemon.containers()) - before == made


def test_two_tenants_with_the_same_session_id_are_isolated(client: Client, session: str) -> None:
    mine = client.ensure_sandbox(session, user="ada", tenant="red")
    yours = client.ensure_sandbox(session, user="ada", tenant="blue")
    try:
        assert mine.container != yours.container
        client.exec(session, "echo secret > /workspace/file", tenant="red")
        assert client.exec(session, "ls /workspace", tenant="blue").stdout == "memo\n"
        assert [item.tenant for item in client.list_sandboxes(tenant="blue") if item.session == session] == ["blue"]
        with pytest.raises(NotFound):
            client.exec(session, "true", tenant="green")
    finally:
        client.destroy_sandbox(session, tenant="red")
    with pytest.raises(NotFound):
        client.get_sandbox(session, tenant="red")
    assert client.get_sandbox(session, tenant="blue").state == "ready"
    client.destroy_sandbox(session, tenant="blue")


def test_a_session_of_another_user_is_refused(client: Client, session: str) -> None:
    client.ensure_sandbox(session, user="ada")
    with pytest.raises(Conflict):
        client.ensure_sandbox(session, user="bob")


def test_destroy_during_create_leaves_nothing(daemon: RunningDaemon, client: Client, session: str) -> None:
    before = set(daemon.containers()), daemon.sandbox_files()
    for _ in range(5):
        ended = threading.Event()

        def create(ended: threading.Event = ended) -> None:
            with daemon.client() as other, suppress(NotReady):
                other.ensure_sandbox(session, user="ada")
            ended.set()

        threading.Thread(target=create).start()
        while not ended.is_set():
            try:
                client.destroy_sandbox(session)
                break
            except NotFound:
                continue
        assert ended.wait(60)
        with suppress(NotFound):
            client.destroy_sandbox(session)
    assert (set(daemon.containers()), daemon.sandbox_files()) == before


def test_stats_during_a_destroy_name_the_sandbox_and_not_the_engine(engine_socket: str, agent_image: str) -> None:
    daemon = RunningDaemon(image=agent_image, failpoint="destroy.drained=delay(300);destroy.removed=delay(700)")
    refusals: list[SandboxdError] = []
    is_over = threading.Event()

    def measure() -> None:
        with daemon.client() as client:
            while not is_over.is_set():
                try:
                    client.stats("s1")
                except SandboxdError as error:
                    refusals.append(error)

    try:
        daemon.start()
        with daemon.client() as client, ThreadPoolExecutor(4) as pool:
            client.ensure_sandbox("s1")
            measuring = [pool.submit(measure) for _ in range(3)]
            try:
                client.destroy_sandbox("s1")
            finally:
                is_over.set()
            for one in measuring:
                one.result()
    finally:
        daemon.stop()
    assert any(isinstance(refusal, NotReady) for refusal in refusals)
    assert {refusal.code for refusal in refusals} <= {NotReady.code, SandboxNotFound.code}


def test_a_session_created_used_and_destroyed_concurrently_ends_consistent(
    daemon: RunningDaemon, client: Client, session: str
) -> None:
    def worker(number: int) -> None:
        with daemon.client() as mine:
            for _ in range(5):
                try:
                    mine.ensure_sandbox(session, user="ada")
                    mine.exec(session, "echo x >> /workspace/log")
                    if number % 3 == 0:
                        mine.destroy_sandbox(session)
                except (NotFound, NotReady, Gone) as refusal:
                    assert str(refusal).startswith("cannot")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(worker, range(6)))
    client.ensure_sandbox(session, user="ada")
    assert client.exec(session, "echo fine").stdout == "fine\n"
    assert len([item for item in client.list_sandboxes() if item.session == session]) == 1


@pytest.mark.parametrize(("how", "cause"), [("kill", "killed"), ("rm", "killed")])
def test_a_container_removed_from_outside_is_reported_and_can_be_recreated(
    client: Client, session: str, how: str, cause: str
) -> None:
    made = client.ensure_sandbox(session, user="ada")
    client.exec(session, "echo kept > /workspace/file")
    seen = newest_event(client)
    docker(*(["rm", "-f"] if how == "rm" else ["kill"]), str(made.container))
    wait_for_state(client, session, "gone", after=seen)
    sandbox = client.get_sandbox(session)
    assert (sandbox.state, sandbox.cause) == ("gone", cause)
    with pytest.raises(Gone, match=cause):
        client.exec(session, "true")
    again = client.ensure_sandbox(session, user="ada")
    assert again.container != made.container
    assert client.exec(session, "cat /workspace/file").stdout == "kept\n"


def test_a_relaunch_that_fails_is_reported_once_and_keeps_the_workspace(engine_socket: str, agent_image: str) -> None:
    daemon = RunningDaemon(image=agent_image).start()
    try:
        with daemon.client() as client:
            made = client.ensure_sandbox("s1", user="ada")
            client.exec("s1", "echo kept > /workspace/file")
        daemon.terminate()
        docker("rm", "-f", str(made.container))
        daemon.start(failpoint="create.mirror=error(ENOSPC)")
        with daemon.client() as client:
            with pytest.raises(HostFull):
                client.ensure_sandbox("s1", user="ada")
            assert client.get_sandbox("s1").state == "hibernated"
        daemon.terminate()
        daemon.start()
        with daemon.client() as client:
            client.ensure_sandbox("s1", user="ada")
            assert client.exec("s1", "cat /workspace/file").stdout == "kept\n"
            client.destroy_sandbox("s1")
    finally:
        daemon.stop()


def test_a_call_under_way_when_the_container_dies_fails_with_the_cause(
    daemon: RunningDaemon, client: Client, session: str
) -> None:
    made = client.ensure_sandbox(session, user="ada")
    process = client.start_process(session, "true").id
    client.read_process(session, process, wait_s=5)
    caught: list[SandboxdError] = []
    started = threading.Event()

    def call() -> None:
        with daemon.client() as other:
            try:
                for _ in other.exec_stream(session, "echo started; sleep 100"):
                    started.set()
            except SandboxdError as error:
                caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert started.wait(30)
    docker("kill", str(made.container))
    thread.join(30)
    assert [type(error) for error in caught] in ([Gone], [NotReady])


def test_an_image_without_python_is_refused_with_a_clear_sentence(client: Client, session: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    docker("import", "--change", 'CMD ["/x"]', str(tmp_path / "empty.tar"), "sandboxd-test-empty:1")
    try:
        with pytest.raises(EngineRefused, match="has no python3"):
            client.ensure_sandbox(session, user="ada", image="sandboxd-test-empty:1")
    finally:
        docker("rmi", "-f", "sandboxd-test-empty:1")


def test_a_missing_image_is_reported_with_the_next_step(daemon: RunningDaemon, client: Client, session: str) -> None:
    before = daemon.sandbox_files()
    with pytest.raises(EngineRefused, match="sandboxd image build"):
        client.ensure_sandbox(session, user="ada", image="sandboxd-test-nowhere:1")
    assert daemon.sandbox_files() == before
    with pytest.raises(NotFound):
        client.get_sandbox(session)


def test_a_full_workspace_affects_only_its_agent(client: Client, session: str) -> None:
    client.ensure_sandbox(session, user="ada", limits={"disk_mb": 16})
    done = client.exec(session, "head -c 64M /dev/zero > /workspace/big")
    assert done.exit_code != 0
    inodes = client.exec(session, "for i in $(seq 1 5000); do : > /workspace/f$i || exit 7; done", timeout_s=60)
    assert inodes.exit_code != 0
    assert client.exec(session, "rm -rf /workspace/f* /workspace/big && echo ok > /workspace/a").exit_code == 0


def test_a_memory_hog_and_a_fork_bomb_are_named_and_the_next_call_answers(client: Client, session: str) -> None:
    client.ensure_sandbox(session, user="ada", limits={"memory_mb": 128, "pids": 64})
    hog = client.exec(session, ["python3", "-c", "x = bytearray(10**9); print(len(x))"])
    assert hog.exit_code == 137
    assert "memory" in hog.limits_hit
    bomb = client.exec(session, "bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=3)
    assert bomb.timed_out
    assert "pids" in bomb.limits_hit
    assert client.exec(session, "echo still here").stdout == "still here\n"
    assert client.exec(session, ["ps", "-e", "-o", "comm="]).stdout.split() == ["python3", "ps"]
