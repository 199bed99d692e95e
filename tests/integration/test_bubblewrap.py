"""What is special about the bubblewrap engine: its view of the host, its records, and life without root."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from memo.ids import SessionRef, UserId
from sandboxd.engine.bubblewrap import BubblewrapEngine, cgroups, processes
from sandboxd.engine.bubblewrap.launch import LaunchPlan, PendingLaunch
from sandboxd.engine.bubblewrap.records import ContainerRecord, Records, mint_id
from sandboxd.engine.protocol import Container, ContainerDied, ContainerSpec, Mount
from sandboxd.errors import EngineRefused, EngineUnavailable
from sandboxd.limits import Limits
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.settings import Settings
from sandboxd.workspace import Workspaces
from tests.ordinary_user import run_as_ordinary_user

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("bwrap") is None, reason="needs root and bwrap"),
]

HANG_GUARD_S = 60
UID = 10001
SpecMaker = Callable[..., ContainerSpec]

LATE_EXEC = """
import ctypes, os, time
ctypes.CDLL(None).prctl(15, b"bwrap")
time.sleep(2.5)
os.execv("/bin/sleep", ["sleep", "600"])
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def engine(state_dir: Path) -> AsyncIterator[BubblewrapEngine]:
    engine = BubblewrapEngine(state_dir)
    yield engine
    for container in await engine.find({}):
        await engine.remove(container.id)
    assert os.listdir(state_dir) == []
    await engine.aclose()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that the container may write, in one that only root may enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "shared").mkdir()
    os.chown(closed / "shared", UID, UID)
    return closed / "shared"


@pytest.fixture
def make_spec(shared: Path) -> SpecMaker:
    def make(*command: str, **changes: object) -> ContainerSpec:
        spec = ContainerSpec(
            name=f"test-{uuid.uuid4().hex}",
            image="host",
            command=command or ("sleep", "600"),
            uid=UID,
            gid=UID,
            labels={"sandboxd.instance": "test"},
            mounts=(Mount(shared, "/workspace", read_only=False),),
            limits=Limits(memory_mb=128, pids=64),
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    return make


def run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD_S, check=True).stdout


def read_proc(pid: int | None, name: str) -> str:
    """Return a file of a process, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def run_daemon_that_kills_itself(state_dir: Path, name: str) -> None:
    source = """
import anyio, os, signal, sys
from pathlib import Path
from memo.ids import SessionRef, UserId
from sandboxd.engine.bubblewrap import BubblewrapEngine
from sandboxd.engine.protocol import ContainerSpec
from sandboxd.limits import Limits

async def main():
    labels = {"sandboxd.instance": "test"}
    spec = ContainerSpec(sys.argv[2], "host", ("sleep", "600"), 10001, 10001, labels, (), Limits())
    await BubblewrapEngine(Path(sys.argv[1])).launch(spec)
    os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""
    arguments = [sys.executable, "-c", source, str(state_dir), name]
    assert subprocess.run(arguments, timeout=HANG_GUARD_S, check=False).returncode == -signal.SIGKILL


async def wait_dead(engine: BubblewrapEngine, container: Container) -> Container:
    assert container.pid is None or container.running
    if container.pid is not None:
        stat = processes.read_stat(container.pid)
        if stat is not None:
            assert await processes.wait_gone(stat.ref, HANG_GUARD_S)
    dead = await engine.inspect(container.id)
    assert dead is not None
    return dead


async def run_inside(engine: BubblewrapEngine, shared: Path, spec: ContainerSpec) -> str:
    """Run a container to its end and return what it wrote to /workspace/out."""
    dead = await wait_dead(engine, await engine.launch(spec))
    assert dead.exit_code == 0, dead
    return (shared / "out").read_text()


def python(source: str) -> tuple[str, ...]:
    return ("python3", "-c", f"import sys; sys.stdout = open('/workspace/out', 'w')\n{source}")


async def test_only_the_programs_of_the_host_are_shown(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path
) -> None:
    source = "import os, json; print(json.dumps([sorted(os.listdir('/')), sorted(os.listdir('/etc'))]))"
    top, etc = json.loads(await run_inside(engine, shared, make_spec(*python(source))))
    assert set(top) <= {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "run", "dev", "proc",
                        "tmp", "workspace"}  # fmt: skip
    assert not {"shadow", "ssh", "sudoers", "machine-id", "environment"} & set(etc)
    assert "passwd" in etc


async def test_process_has_no_privilege_and_a_filter(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path
) -> None:
    status = await run_inside(engine, shared, make_spec(*python("print(open('/proc/self/status').read())")))
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert all(int(fields[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert (fields["NoNewPrivs"], fields["Seccomp"], fields["NSpid"].strip()) == ("1", "2", "1")
    assert fields["Uid"].split() == [str(UID)] * 4


async def test_every_namespace_is_its_own(engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path) -> None:
    kinds = ["user", "pid", "net", "ipc", "uts", "mnt", "cgroup"]
    source = f"import os\nfor kind in {kinds}: print(os.readlink(f'/proc/self/ns/{{kind}}'))"
    inside = (await run_inside(engine, shared, make_spec(*python(source)))).split()
    assert not set(inside) & {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}


async def test_only_three_descriptors_are_open_even_if_the_daemon_leaks_one(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path
) -> None:
    leaked = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        look = "import os; seen = [fd for fd in range(1024) if os.path.exists(f'/proc/self/fd/{fd}')]"
        spec = make_spec("python3", "-c", f"{look}; open('/workspace/out', 'w').write(repr(seen))")
        assert await run_inside(engine, shared, spec) == "[0, 1, 2]"
    finally:
        os.close(leaked)


async def test_tmp_is_noexec_and_limited_and_the_root_is_read_only(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path
) -> None:
    source = """
import os, errno, shutil
for path in ("/x", "/etc/x", "/usr/x", "/dev/x", "/run/x", "/proc/sys/kernel/hostname"):
    try: open(path, "w"); print("wrote", path)
    except OSError as error: assert error.errno in (errno.EROFS, errno.EACCES, errno.EPERM), error
for place in ("/tmp", "/dev/shm"):
    shutil.copy("/usr/bin/true", f"{place}/true")
    try: os.posix_spawn(f"{place}/true", ["true"], {}); print("ran", place)
    except PermissionError: pass
    print(place, os.statvfs(place).f_blocks * os.statvfs(place).f_frsize >> 20)
"""
    assert await run_inside(engine, shared, make_spec(*python(source))) == "/tmp 128\n/dev/shm 64\n"


async def test_environment_comes_from_the_spec_only_and_is_not_on_a_command_line(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAEMON_SECRET", "canary-of-the-daemon")
    secret = {"TOKEN": "canary-of-the-spec"}
    names = await run_inside(engine, shared, make_spec(*python("import os; print(*sorted(os.environ))"), env=secret))
    assert names.split() == ["HOME", "LANG", "PATH", "PWD", "TOKEN"]
    await engine.launch(make_spec(env=secret))
    lines = [read_proc(pid, "cmdline") for pid in all_pids()]
    assert any("bwrap" in line for line in lines)
    assert not any("canary-of-the-spec" in line for line in lines)


async def test_container_never_runs_as_the_hosts_root(engine: BubblewrapEngine, make_spec: SpecMaker) -> None:
    container = await engine.launch(make_spec())
    assert container.pid is not None
    status = read_proc(container.pid, "status")
    assert re.search(rf"^Uid:\t{UID}\t{UID}\t{UID}\t{UID}$", status, re.MULTILINE)
    with pytest.raises(EngineRefused, match="never runs as root"):
        await engine.launch(make_spec(uid=0))


async def test_directory_can_be_the_root_filesystem(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    linked = run("ldd", "/bin/bash")
    for file in ["/bin/bash", *re.findall(r"(/\S+)", linked)]:
        target = image / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (image / "only-here").mkdir()
    spec = make_spec("/bin/bash", "-c", "echo /* > /workspace/out", image=str(image))
    listing = (await run_inside(engine, shared, spec)).split()
    assert "/only-here" in listing
    assert "/usr" not in listing
    assert "/workspace" not in [f"/{name}" for name in os.listdir(image)]
    with pytest.raises(EngineRefused, match="cannot launch from"):
        await engine.launch(make_spec(image="debian:12"))


async def test_control_group_holds_the_container_and_is_removed_with_it(
    engine: BubblewrapEngine, make_spec: SpecMaker
) -> None:
    hierarchy, why = cgroups.probe()
    if hierarchy is None:
        pytest.skip(why)
    spec = make_spec()
    container = await engine.launch(spec)
    assert container.pid in cgroups.members(hierarchy, spec.name)
    await engine.remove(container.id)
    assert not any(directory.exists() for directory in hierarchy.directories(spec.name))


async def test_container_survives_kill_9_of_its_daemon(
    engine: BubblewrapEngine, make_spec: SpecMaker, state_dir: Path
) -> None:
    spec = make_spec(mounts=())
    run_daemon_that_kills_itself(state_dir, spec.name)
    events = engine.events()
    await anext(events)
    [found] = await engine.find({"sandboxd.instance": "test"})
    assert found.running
    assert found.pid is not None
    os.kill(found.pid, signal.SIGKILL)
    with anyio.fail_after(HANG_GUARD_S):
        assert await anext(events) == ContainerDied(found.id, "killed", 137)


async def test_container_that_was_never_recorded_as_complete_is_adopted(
    engine: BubblewrapEngine, make_spec: SpecMaker, state_dir: Path
) -> None:
    container = await engine.launch(make_spec())
    kept = Records(state_dir)
    record = kept.read(container.name)
    assert record is not None
    kept.update(replace(record, init=None))  # as left by a daemon that dies before it records the pid
    successor = BubblewrapEngine(state_dir)
    assert await successor.inspect(container.id) == container
    await successor.remove(container.id)
    assert container.pid is not None
    assert processes.read_stat(container.pid) is None or not processes.is_alive(ref_of(record))


def ref_of(record: ContainerRecord) -> processes.ProcessRef:
    assert record.init is not None
    return record.init


async def test_intent_without_a_process_counts_as_ended_by_the_engine_and_is_removable(
    engine: BubblewrapEngine, state_dir: Path
) -> None:
    record = ContainerRecord(mint_id("half"), "half", "host", {}, boot_id=processes.boot_id(), has_cgroup=True)
    Records(state_dir).create(record)
    found = await engine.inspect(record.id)
    assert found is not None
    assert (found.running, found.cause) == (False, "engine")
    await engine.remove(record.id)
    assert await engine.inspect(record.id) is None


async def test_record_from_before_a_reboot_is_dead_even_if_its_pid_is_reused(
    engine: BubblewrapEngine, state_dir: Path
) -> None:
    stat = processes.read_stat(os.getpid())
    assert stat is not None
    record = ContainerRecord(
        mint_id("old"), "old", "host", {}, "another-boot", has_cgroup=False, monitor=stat.ref, init=stat.ref
    )
    Records(state_dir).create(record)
    found = await engine.inspect(record.id)
    assert found is not None
    assert not found.running
    await engine.remove(record.id)  # would kill this test process if it trusted the pid


async def test_bwrap_that_is_starved_of_cpu_is_awaited(engine: BubblewrapEngine, state_dir: Path) -> None:
    """A process named bwrap that execs only after seconds, as on an overloaded host."""
    late = subprocess.Popen([sys.executable, "-c", LATE_EXEC], start_new_session=True)
    monitor = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with anyio.fail_after(HANG_GUARD_S):
        while (stat := processes.read_stat(late.pid)) is None or stat.program != "bwrap":
            await anyio.sleep(0.01)
    seen = processes.read_stat(monitor.pid)
    assert seen is not None
    record = ContainerRecord(
        mint_id("late"), "late", "host", {}, processes.boot_id(), has_cgroup=False, monitor=seen.ref
    )
    kept = Records(state_dir)
    kept.create(record)
    kept.status_path("late").write_text(json.dumps({"child-pid": late.pid}) + "\n")
    ours, theirs = socket.socketpair()
    started = PendingLaunch(seen.ref, b"", ours, theirs, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    try:
        with anyio.fail_after(HANG_GUARD_S):
            completed = await engine._complete(record, started)
        assert completed.init == stat.ref
    finally:
        started.close()
        for process in (late, monitor):
            process.kill()
            process.wait()


async def test_a_start_that_takes_too_long_is_retryable_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        data=tmp_path / "data", socket=tmp_path / "unused.sock", engine="bubblewrap", pool=0, start_timeout_s=0.5
    )
    ref, request = SessionRef.of("acme", "s1"), SandboxRequest(user=UserId("ada"))
    async with SandboxManager(settings) as manager:
        with monkeypatch.context() as patch, anyio.fail_after(HANG_GUARD_S):
            patch.setattr(PendingLaunch, "send_plan", lambda _self: None)  # so it stays alive, and never makes progress
            with pytest.raises(
                EngineUnavailable, match=r"its container was not ready within 0.5 s; .*try again"
            ) as slow:
                await manager.ensure_sandbox(ref, request)
        assert slow.value.retryable
        assert await manager.engine.find({}) == []
        assert os.listdir(settings.data / "engine") == []
    with anyio.fail_after(HANG_GUARD_S):
        async with SandboxManager(settings.model_copy(update={"start_timeout_s": 60})) as manager:
            view = await manager.ensure_sandbox(ref, request)
            assert (view.state, view.created) == ("ready", True)
            await manager.destroy(ref)


async def test_a_stopped_container_is_shown_as_paused(engine: BubblewrapEngine, make_spec: SpecMaker) -> None:
    container = await engine.launch(make_spec())
    assert container.pid is not None
    for number, is_paused in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        os.kill(container.pid, number)
        with anyio.fail_after(HANG_GUARD_S):
            while (found := await engine.inspect(container.id)) is not None and found.paused is not is_paused:
                await anyio.sleep(0.01)
        assert found is not None
        assert found.running


async def test_deadline_of_a_dying_process_runs_only_while_it_is_stuck() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    stopped = subprocess.Popen(["sleep", "600"])
    try:
        stopped.send_signal(signal.SIGSTOP)
        stuck, busy = processes.read_stat(stopped.pid), processes.read_stat(spinning.pid)
        assert stuck is not None
        assert busy is not None
        assert not await processes.wait_exit(stuck.ref, 0.05)
        with anyio.move_on_after(1) as scope:
            await processes.wait_exit(busy.ref, 0.05)
        assert scope.cancelled_caught, "a process that gets CPU time is not given up"
        spinning.kill()
        assert await processes.wait_exit(busy.ref, HANG_GUARD_S)
    finally:
        for process in (spinning, stopped):
            process.kill()
            process.wait()


async def test_process_that_never_gets_its_plan_does_nothing(
    engine: BubblewrapEngine, make_spec: SpecMaker, state_dir: Path
) -> None:
    spec = make_spec()
    kept = Records(state_dir)
    kept.create(ContainerRecord(mint_id(spec.name), spec.name, "host", {}, processes.boot_id(), has_cgroup=False))
    started = LaunchPlan.of(spec, "/usr/bin/bwrap", kept, False).spawn()
    started.close()  # as the kernel does when the daemon dies
    assert await processes.wait_gone(started.monitor, HANG_GUARD_S)
    processes.reap(started.monitor)
    assert kept.read_status(spec.name).init_pid is None


async def test_container_that_is_still_starting_is_running_without_a_pid_and_removable(
    engine: BubblewrapEngine, make_spec: SpecMaker, state_dir: Path
) -> None:
    spec = make_spec()
    kept = Records(state_dir)
    record = ContainerRecord(mint_id(spec.name), spec.name, "host", {}, processes.boot_id(), has_cgroup=False)
    kept.create(record)
    started = LaunchPlan.of(spec, "/usr/bin/bwrap", kept, False).spawn()
    try:
        kept.update(replace(record, monitor=started.monitor))
        [found] = await engine.find({})
        assert (found.running, found.pid) == (True, None)
        await engine.remove(record.id)
        assert not processes.is_alive(started.monitor)
        assert await engine.find({}) == []
    finally:
        started.close()


async def test_deaths_are_reported_while_dead_containers_are_removed(
    engine: BubblewrapEngine, make_spec: SpecMaker
) -> None:
    events = engine.events()
    await anext(events)
    launched = [await engine.launch(make_spec()) for _ in range(6)]
    async with anyio.create_task_group() as tasks:
        for container in launched:
            tasks.start_soon(engine.remove, container.id)
        with anyio.fail_after(HANG_GUARD_S):
            told = [await anext(events) for _ in launched]
    assert all(isinstance(event, ContainerDied) and event.cause == "killed" for event in told)


async def test_container_does_not_hold_the_workspace_of_another(
    engine: BubblewrapEngine, make_spec: SpecMaker, tmp_path: Path
) -> None:
    workspaces = Workspaces(tmp_path / "workspaces", uid=UID, gid=UID)
    await workspaces.open()
    if workspaces.kind != "loop":
        pytest.skip(workspaces.diagnose()[0].detail)
    await workspaces.create("other", 64)
    await engine.launch(make_spec())
    await workspaces.remove("other")
    assert str(tmp_path) not in run("losetup", "-l", "-n", "-O", "BACK-FILE")


async def test_other_mounts_below_a_source_are_not_shown(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path
) -> None:
    (shared / "below").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", shared / "below")
    try:
        (shared / "below" / "hidden").write_text("x")
        out = await run_inside(engine, shared, make_spec("sh", "-c", "ls -A /workspace/below > /workspace/out"))
    finally:
        run("umount", shared / "below")
    assert out == ""


async def test_container_that_floods_stderr_neither_blocks_nor_fills_the_disk(
    engine: BubblewrapEngine, make_spec: SpecMaker, shared: Path
) -> None:
    source = (
        "import os\nfor _ in range(1000):\n try: os.write(2, bytes(4096))\n except BlockingIOError: pass\nprint('done')"
    )
    assert await run_inside(engine, shared, make_spec(*python(source))) == "done\n"


async def test_diagnosis_lists_what_is_weaker_than_docker(engine: BubblewrapEngine) -> None:
    findings = {finding.subject: finding for finding in await engine.diagnose()}
    assert findings["engine"].verdict == "ok"
    assert findings["root filesystem"].verdict == "weak"
    assert findings["mandatory access control"].verdict == "weak"


ORDINARY = """
import anyio, os, signal, sys
from pathlib import Path
from memo.ids import SessionRef, UserId
from sandboxd.engine.bubblewrap import BubblewrapEngine
from sandboxd.engine.protocol import ContainerDied, ContainerSpec, Mount
from sandboxd.limits import Limits

FORK = '''
import os, time, sys
count = 1
try:
    while count < int(sys.argv[1]):
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except BlockingIOError:
    pass
open(f"/workspace/{sys.argv[2]}", "w").write(str(count))
time.sleep(600)
'''

async def main():
    state = Path(sys.argv[1])
    shared = state.parent / "shared"
    shared.mkdir()
    engine = BubblewrapEngine(state)
    findings = {finding.subject: finding.verdict for finding in await engine.diagnose()}
    assert findings["limits"] == findings["user"] == "weak", findings
    events = engine.events()
    await anext(events)

    async def launch(name, *command):
        mounts = (Mount(shared, "/workspace", False),)
        return await engine.launch(
            ContainerSpec(name, "host", command, 10001, 10001, {"a": "b"}, mounts, Limits(memory_mb=128, pids=24))
        )

    for count, name in (("20", "a"), ("20", "b"), ("1000", "c")):
        os.mkfifo(shared / name)
        await launch(name, "python3", "-c", FORK, count, name)
    for name in "abc":
        with anyio.fail_after(60):
            print(name, await anyio.Path(shared / name).read_text())
    stats = await engine.stats((await engine.find({}))[0].id)
    assert stats.pids == 20 and stats.memory_bytes > 1_000_000, stats
    for container in await engine.find({"a": "b"}):
        assert container.running
        await engine.remove(container.id)
        assert (await anext(events)).cause == "killed"

    who = await launch("who", "sh", "-c", "id -u > /workspace/id; touch /tmp/x; cp /bin/true /tmp; /tmp/true; exit 9")
    assert await anext(events) == ContainerDied(who.id, "exited", 9)
    print((shared / "id").read_text().strip(), (shared / "id").stat().st_uid)
    await engine.remove(who.id)
    assert os.listdir(state) == []

anyio.run(main)
"""


def test_ordinary_user_gets_the_same_containers_with_a_process_limit_for_each() -> None:
    lines = run_as_ordinary_user(ORDINARY).splitlines()
    assert lines[:2] == ["a 20", "b 20"]  # together more than one limit: nothing is counted across containers
    name, count = lines[2].split()
    assert name == "c"
    assert 16 <= int(count) <= 24
    assert lines[3] == "10001 10002"
