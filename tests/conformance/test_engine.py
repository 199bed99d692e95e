"""The contract of `sandboxd/engine/protocol.py`, checked against every engine."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from pathlib import Path

import anyio
import pytest

from sandboxd.engine.protocol import (
    LABEL_INSTANCE,
    LABEL_SANDBOX,
    Container,
    ContainerPaused,
    ContainerResumed,
    Engine,
    Mount,
    Resynced,
)
from sandboxd.errors import EngineRefused
from sandboxd.limits import Limits
from tests.conformance.conftest import EngineMaker, Freezer, SpecMaker
from tests.conformance.deaths import HANG_GUARD_S, listening

pytestmark = pytest.mark.anyio

EAT_MEMORY = "blocks = []\nwhile True: blocks.append(bytearray(4_000_000))"


async def test_launched_container_runs_and_inspection_agrees(engine: Engine, make_spec: SpecMaker) -> None:
    spec = make_spec()
    launched = await engine.launch(spec)
    assert launched.running
    assert launched.cause is None
    assert launched.name == spec.name
    assert dict(launched.labels).items() >= dict(spec.labels).items()
    assert launched.pid is not None
    os.kill(launched.pid, 0)
    assert await engine.inspect(launched.id) == launched


async def test_unknown_container_is_none_not_an_error(engine: Engine) -> None:
    assert await engine.inspect(uuid.uuid4().hex) is None


async def test_container_is_found_by_its_labels_and_by_no_others(
    engine: Engine, make_spec: SpecMaker, instance: str
) -> None:
    first, second = make_spec(), make_spec("sh", "-c", "exit 0")
    one = await engine.launch(first)
    two = await engine.launch(second)
    assert {found.id for found in await engine.find({LABEL_INSTANCE: instance})} == {one.id, two.id}
    both = {LABEL_INSTANCE: instance, LABEL_SANDBOX: first.labels[LABEL_SANDBOX]}
    assert [found.id for found in await engine.find(both)] == [one.id]
    assert await engine.find({LABEL_INSTANCE: f"not-{instance}"}) == []
    assert await engine.find({**both, LABEL_INSTANCE: "somebody-else"}) == []


async def test_two_instances_do_not_see_each_other(engine: Engine, make_spec: SpecMaker, instance: str) -> None:
    other = f"test-{uuid.uuid4().hex}"
    mine = await engine.launch(make_spec())
    theirs = await engine.launch(make_spec(labels={LABEL_INSTANCE: other, LABEL_SANDBOX: "x"}))
    try:
        assert [found.id for found in await engine.find({LABEL_INSTANCE: instance})] == [mine.id]
        assert [found.id for found in await engine.find({LABEL_INSTANCE: other})] == [theirs.id]
    finally:
        await engine.remove(theirs.id)


async def test_removing_a_container_twice_or_a_missing_one_is_not_an_error(
    engine: Engine, make_spec: SpecMaker, instance: str
) -> None:
    container = await engine.launch(make_spec())
    await engine.remove(container.id)
    await engine.remove(container.id)
    await engine.remove(uuid.uuid4().hex)
    assert await engine.inspect(container.id) is None
    assert await engine.find({LABEL_INSTANCE: instance}) == []


async def test_concurrent_removals_of_one_container_all_succeed(engine: Engine, make_spec: SpecMaker) -> None:
    container = await engine.launch(make_spec())
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(engine.remove, container.id)
    assert await engine.inspect(container.id) is None


@pytest.mark.isolation
async def test_mounts_are_writable_or_not_as_requested(
    engine: Engine, make_spec: SpecMaker, shared_dir: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    shown.chmod(0o777)
    (shown / "text").write_text("from the host")
    script = "cp /shown/text /shared/copy; touch /shown/new 2>/shared/refusal; echo $? > /shared/code; exit 5"
    spec = make_spec("sh", "-c", script, mounts=(Mount(shared_dir, "/shared", False), Mount(shown, "/shown", True)))
    async with listening(engine) as book:
        container = await engine.launch(spec)
        assert (await book.death_of(container.id)).exit_code == 5
    assert (shared_dir / "copy").read_text() == "from the host"
    assert (shared_dir / "code").read_text() != "0\n"
    assert "Read-only file system" in (shared_dir / "refusal").read_text()
    assert os.listdir(shown) == ["text"]


@pytest.mark.isolation
async def test_read_only_mount_inside_a_writable_one_stays_read_only(
    engine: Engine, make_spec: SpecMaker, shared_dir: Path, tmp_path: Path
) -> None:
    memo = tmp_path / "memo"
    memo.mkdir()
    memo.chmod(0o777)
    (shared_dir / "memo").mkdir()
    script = "touch /workspace/a; touch /workspace/memo/b; mv /workspace/memo /workspace/c; rmdir /workspace/memo; true"
    mounts = (Mount(memo, "/workspace/memo", True), Mount(shared_dir, "/workspace", False))
    async with listening(engine) as book:
        container = await engine.launch(make_spec("sh", "-c", script, mounts=mounts))
        await book.death_of(container.id)
    assert sorted(os.listdir(shared_dir)) == ["a", "memo"]
    assert os.listdir(memo) == []


@pytest.mark.isolation
async def test_process_runs_as_the_requested_user(engine: Engine, make_spec: SpecMaker, shared_dir: Path) -> None:
    script = "import os,json; json.dump([os.getuid(), os.getgid(), os.getgroups()], open('/shared/ids', 'w'))"
    spec = make_spec("python3", "-c", script, uid=12345, gid=12346, mounts=(Mount(shared_dir, "/shared", False),))
    async with listening(engine) as book:
        container = await engine.launch(spec)
        assert (await book.death_of(container.id)).exit_code == 0
    uid, gid, groups = json.loads((shared_dir / "ids").read_text())
    assert (uid, gid) == (12345, 12346)
    assert set(groups) <= {12346}


async def test_odd_environment_values_arrive_unchanged(engine: Engine, make_spec: SpecMaker, shared_dir: Path) -> None:
    odd = {
        "UMLAUT": "größe 東京 🦊",
        "QUOTES": 'it\'s "fine" $HOME `id` \\',
        "LINES": "a\nb\n",
        "EQUALS": "a=b=c",
        "EMPTY": "",
        "SPACES": "  x  ",
    }
    script = "import os,json; json.dump(dict(os.environ), open('/shared/env', 'w'))"
    spec = make_spec("python3", "-c", script, env=odd, mounts=(Mount(shared_dir, "/shared", False),))
    async with listening(engine) as book:
        container = await engine.launch(spec)
        assert (await book.death_of(container.id)).exit_code == 0
    seen = json.loads((shared_dir / "env").read_text())
    assert {name: seen.get(name) for name in odd} == odd


@pytest.mark.parametrize("ids", [(0, 10001), (10001, 0)])
async def test_no_container_runs_as_root(
    engine: Engine, make_spec: SpecMaker, instance: str, ids: tuple[int, int]
) -> None:
    with pytest.raises(EngineRefused, match="never runs as root"):
        await engine.launch(make_spec(uid=ids[0], gid=ids[1]))
    assert await engine.find({LABEL_INSTANCE: instance}) == []


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
async def test_invalid_environment_is_refused(engine: Engine, make_spec: SpecMaker, instance: str, name: str) -> None:
    with pytest.raises(EngineRefused, match="cannot launch"):
        await engine.launch(make_spec(env={name: "x"}))
    assert await engine.find({LABEL_INSTANCE: instance}) == []


@pytest.mark.parametrize("code", [0, 3, 200])
async def test_exit_is_announced_with_its_code(engine: Engine, make_spec: SpecMaker, code: int) -> None:
    async with listening(engine) as book:
        container = await engine.launch(make_spec("sh", "-c", f"exit {code}"))
        death = await book.death_of(container.id)
    assert (death.cause, death.exit_code) == ("exited", code)
    await _assert_dead(engine, container, "exited", code)


async def test_sigkill_of_pid_1_is_announced_as_killed(engine: Engine, make_spec: SpecMaker) -> None:
    async with listening(engine) as book:
        container = await engine.launch(make_spec())
        assert container.pid is not None
        os.kill(container.pid, signal.SIGKILL)
        death = await book.death_of(container.id)
    assert (death.cause, death.exit_code) == ("killed", 137)
    await _assert_dead(engine, container, "killed", 137)


@pytest.mark.isolation
async def test_memory_hog_in_pid_1_is_announced_as_oom(engine: Engine, make_spec: SpecMaker) -> None:
    async with listening(engine) as book:
        container = await engine.launch(make_spec("python3", "-c", EAT_MEMORY, limits=Limits(memory_mb=64)))
        death = await book.death_of(container.id)
    assert (death.cause, death.exit_code) == ("oom", 137)
    await _assert_dead(engine, container, "oom", 137)


@pytest.mark.isolation
async def test_memory_hog_in_a_child_does_not_mark_a_later_exit_as_oom(engine: Engine, make_spec: SpecMaker) -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EAT_MEMORY!r}]); sys.exit(4)"
    async with listening(engine) as book:
        container = await engine.launch(make_spec("python3", "-c", script, limits=Limits(memory_mb=64)))
        death = await book.death_of(container.id)
    # The kernel chooses which process to kill; the reported cause must match its choice.
    assert (death.cause, death.exit_code) in [("exited", 4), ("oom", 137)]


@pytest.mark.isolation
async def test_memory_hog_in_a_child_ends_only_the_child(engine: Engine, make_spec: SpecMaker) -> None:
    greedy = f"open('/proc/self/oom_score_adj', 'w').write('1000')\n{EAT_MEMORY}"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {greedy!r}]); sys.exit(4)"
    async with listening(engine) as book:
        container = await engine.launch(make_spec("python3", "-c", script, limits=Limits(memory_mb=64)))
        death = await book.death_of(container.id)
    assert (death.cause, death.exit_code) == ("exited", 4)


@pytest.mark.isolation
async def test_pid_1_survives_a_kill_from_inside(engine: Engine, make_spec: SpecMaker) -> None:
    async with listening(engine) as book:
        container = await engine.launch(make_spec("sh", "-c", "(kill -9 1); (kill -9 1); exit 4"))
        assert (await book.death_of(container.id)).exit_code == 4


@pytest.mark.isolation
async def test_the_system_call_filter_is_on(engine: Engine, make_spec: SpecMaker) -> None:
    look = "import re, sys; sys.exit(4 if re.search('Seccomp:.2', open('/proc/self/status').read()) else 5)"
    async with listening(engine) as book:
        container = await engine.launch(make_spec("python3", "-c", look))
        assert (await book.death_of(container.id)).exit_code == 4


async def test_a_pause_from_outside_and_its_end_are_reported(
    engine: Engine, make_spec: SpecMaker, freeze: Freezer
) -> None:
    container = await engine.launch(make_spec())
    stream = engine.events()
    with anyio.fail_after(HANG_GUARD_S):
        assert await anext(stream) == Resynced()
        for frozen, expected in ((True, ContainerPaused), (False, ContainerResumed)):
            await anyio.to_thread.run_sync(freeze, container, frozen)
            while (event := await anext(stream)) != expected(container.id):
                assert not isinstance(event, ContainerPaused | ContainerResumed) or event.container_id != container.id
            found = await engine.inspect(container.id)
            assert found is not None
            assert (found.running, found.paused) == (True, frozen)


async def test_an_earlier_pause_is_found_and_its_end_is_reported(
    engine: Engine, make_engine: EngineMaker, make_spec: SpecMaker, freeze: Freezer, instance: str
) -> None:
    container = await engine.launch(make_spec())
    await anyio.to_thread.run_sync(freeze, container, True)
    later = make_engine()
    stream = later.events()
    with anyio.fail_after(HANG_GUARD_S):
        assert await anext(stream) == Resynced()
        (found,) = await later.find({LABEL_INSTANCE: instance})
        assert found.paused
        await anyio.to_thread.run_sync(freeze, container, False)
        while await anext(stream) != ContainerResumed(container.id):
            pass
    await later.aclose()


async def test_the_engine_pauses_a_container_and_resumes_it_where_it_was(engine: Engine, make_spec: SpecMaker) -> None:
    container = await engine.launch(make_spec("sh", "-c", "while :; do :; done"))
    stream = engine.events()
    with anyio.fail_after(HANG_GUARD_S):
        assert await anext(stream) == Resynced()
        for _ in range(2):
            for act, is_paused in ((engine.pause, True), (engine.resume, False)):
                await act(container.id)
                await act(container.id)  # twice is not an error
                found = await engine.inspect(container.id)
                assert found is not None
                assert (found.pid, found.running, found.paused) == (container.pid, True, is_paused)
                expected = ContainerPaused(container.id) if is_paused else ContainerResumed(container.id)
                while await anext(stream) != expected:
                    pass
                before = (await engine.stats(container.id)).cpu_seconds
                await anyio.sleep(0.3)
                if is_paused:  # gVisor's own processes use a little
                    assert (await engine.stats(container.id)).cpu_seconds - before < 0.1
                while not is_paused and (await engine.stats(container.id)).cpu_seconds == before:
                    await anyio.sleep(0.05)
    await engine.pause(container.id)
    await engine.remove(container.id)
    for act in (engine.pause, engine.resume):
        with pytest.raises(EngineRefused):
            await act(container.id)


async def test_a_paused_container_can_be_removed(engine: Engine, make_spec: SpecMaker, freeze: Freezer) -> None:
    container = await engine.launch(make_spec())
    await anyio.to_thread.run_sync(freeze, container, True)
    await engine.remove(container.id)
    assert await engine.inspect(container.id) is None


async def test_a_runtime_can_be_chosen_by_name(engine: Engine) -> None:
    assert await engine.find_runtime("runc") == "runc"


async def test_an_unknown_runtime_is_refused_in_one_sentence(engine: Engine) -> None:
    with pytest.raises(EngineRefused, match=r"cannot use the runtime no-such-runtime: .*SANDBOXD_RUNTIME"):
        await engine.find_runtime("no-such-runtime")


async def test_removal_of_a_running_container_is_announced_as_killed(engine: Engine, make_spec: SpecMaker) -> None:
    async with listening(engine) as book:
        container = await engine.launch(make_spec())
        await engine.remove(container.id)
        assert (await book.death_of(container.id)).cause == "killed"


async def test_one_death_is_announced_once(engine: Engine, make_spec: SpecMaker) -> None:
    async with listening(engine) as book:
        first = await engine.launch(make_spec("sh", "-c", "exit 1"))
        await book.death_of(first.id)
        await engine.remove(first.id)
        last = await engine.launch(make_spec("sh", "-c", "exit 2"))
        await book.death_of(last.id)
        assert [death.container_id for death in book.deaths].count(first.id) == 1


async def test_listener_that_ends_leaves_no_thread(engine: Engine, make_spec: SpecMaker) -> None:
    async with listening(engine):
        pass
    before = threading.active_count()
    for _ in range(5):
        async with listening(engine):
            pass
    assert threading.active_count() <= before


async def test_stats_are_plausible(engine: Engine, make_spec: SpecMaker, shared_dir: Path) -> None:
    script = """
import subprocess, time
held = bytearray(20_000_000)
children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
until = time.process_time() + 0.2
while time.process_time() < until: pass
open("/shared/ready", "w").close()
time.sleep(600)
"""
    container = await engine.launch(make_spec("python3", "-c", script, mounts=(Mount(shared_dir, "/shared", False),)))
    with anyio.fail_after(HANG_GUARD_S):
        while not (shared_dir / "ready").exists():
            await anyio.sleep(0.05)
    stats = await engine.stats(container.id)
    assert 20_000_000 <= stats.memory_bytes <= 128 * 1024 * 1024
    assert 0.2 <= stats.cpu_seconds < 60
    assert stats.pids >= 4


async def test_stats_count_the_processes_of_the_container(engine: Engine, make_spec: SpecMaker) -> None:
    container = await engine.launch(make_spec())
    assert 1 <= (await engine.stats(container.id)).pids <= 4


async def test_stats_of_a_missing_container_are_refused(engine: Engine) -> None:
    with pytest.raises(EngineRefused, match="cannot read stats"):
        await engine.stats(uuid.uuid4().hex)


@pytest.mark.isolation
async def test_fork_bomb_stops_at_the_pid_limit(engine: Engine, make_spec: SpecMaker, shared_dir: Path) -> None:
    script = """
import os, time
count = 1
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except OSError as error:
    open("/shared/count", "w").write(f"{count} {error.errno}")
"""
    spec = make_spec("python3", "-c", script, limits=Limits(pids=32), mounts=(Mount(shared_dir, "/shared", False),))
    async with listening(engine) as book:
        container = await engine.launch(spec)
        assert (await book.death_of(container.id)).exit_code == 0
    count, errno = map(int, (shared_dir / "count").read_text().split())
    assert 16 <= count <= 32
    assert errno == 11


@pytest.mark.parametrize("breakage", ["no program", "no mount source"])
async def test_failed_launch_leaves_nothing(
    engine: Engine, make_spec: SpecMaker, instance: str, tmp_path: Path, breakage: str
) -> None:
    if breakage == "no program":
        spec = make_spec("/no/such/program")
    else:
        spec = make_spec(mounts=(Mount(tmp_path / "absent", "/absent", True),))
    with pytest.raises(EngineRefused, match="cannot launch") as refused:
        await engine.launch(spec)
    assert "Traceback" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert await engine.find({LABEL_INSTANCE: instance}) == []
    await engine.launch(make_spec(name=spec.name))


async def test_cancelled_launch_leaves_nothing(engine: Engine, make_spec: SpecMaker, instance: str) -> None:
    for delay_s in (0.0, 0.01, 0.05, 0.1, 0.2):
        container = None
        with anyio.move_on_after(delay_s) as scope:
            container = await engine.launch(make_spec())
        if container is not None:  # it was faster than the deadline
            await engine.remove(container.id)
        assert await engine.find({LABEL_INSTANCE: instance}) == [], f"cancelled after {delay_s} s"
        assert scope.cancel_called or delay_s


async def test_own_container_of_the_same_name_is_replaced(engine: Engine, make_spec: SpecMaker, instance: str) -> None:
    spec = make_spec()
    first = await engine.launch(spec)
    second = await engine.launch(spec)
    assert second.running
    assert [found.id for found in await engine.find({LABEL_INSTANCE: instance})] == [second.id]
    assert first.id == second.id or await engine.inspect(first.id) is None


async def test_foreign_container_of_the_same_name_is_left_alone(engine: Engine, make_spec: SpecMaker) -> None:
    foreign = make_spec(labels={LABEL_INSTANCE: f"test-{uuid.uuid4().hex}"})
    theirs = await engine.launch(foreign)
    try:
        with pytest.raises(EngineRefused, match="cannot launch"):
            await engine.launch(make_spec(name=foreign.name))
        still = await engine.inspect(theirs.id)
        assert still is not None
        assert still.running
    finally:
        await engine.remove(theirs.id)


async def test_containers_survive_the_engine_object(
    engine: Engine, make_engine: EngineMaker, make_spec: SpecMaker, instance: str
) -> None:
    first = make_engine()
    container = await first.launch(make_spec())
    await first.aclose()
    assert [found.id for found in await engine.find({LABEL_INSTANCE: instance})] == [container.id]
    async with listening(engine) as book:
        assert container.pid is not None
        os.kill(container.pid, signal.SIGKILL)
        assert (await book.death_of(container.id)).cause == "killed"


async def test_engine_reports_which_images_it_has(engine: Engine, image: str) -> None:
    assert await engine.has_image(image)
    assert not await engine.has_image("sandboxd-no-such-image:never")


async def test_diagnosis_names_every_weakness_with_advice(engine: Engine) -> None:
    findings = await engine.diagnose()
    assert "seccomp" in {finding.subject for finding in findings}
    assert all(finding.detail for finding in findings)
    assert all(finding.advice for finding in findings if finding.verdict != "ok")


async def _assert_dead(engine: Engine, container: Container, cause: str, exit_code: int) -> None:
    dead = await engine.inspect(container.id)
    assert dead is not None
    assert (dead.running, dead.cause, dead.exit_code) == (False, cause, exit_code)
