"""The hardening table, and its translation for an engine."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from sandboxd.engine.protocol import LABEL_INSTANCE, ContainerSpec, Mount
from sandboxd.engine.spec import HARDENING, render_container, tmp_options
from sandboxd.errors import EngineRefused
from sandboxd.limits import Limits

SPEC = ContainerSpec(
    name="sandboxd-x",
    image="image:1",
    command=("python3", "-c", "pass"),
    uid=10001,
    gid=10002,
    labels={LABEL_INSTANCE: "i"},
    mounts=(Mount(Path("/w"), "/workspace", False), Mount(Path("/m"), "/workspace/memo", True)),
    limits=Limits(memory_mb=64, cpus=0.25, pids=20, disk_mb=10),
    env={"A": "1"},
)


def test_table_cannot_be_changed_at_run_time() -> None:
    with pytest.raises(FrozenInstanceError):
        HARDENING.network = "host"  # type: ignore[misc]


def test_create_call_contains_every_flag_of_the_table() -> None:
    mib = 1024 * 1024
    bind = {"Propagation": "rprivate", "NonRecursive": True}
    rendered = render_container(SPEC, "PROFILE")
    assert rendered.pop("HostConfig") == {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", "seccomp=PROFILE"],
        "ReadonlyRootfs": True,
        "MaskedPaths": list(HARDENING.masked_paths),
        "ReadonlyPaths": list(HARDENING.read_only_paths),
        "NetworkMode": "none",
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
        "PublishAllPorts": False,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "Mounts": [
            {"Type": "bind", "Source": "/w", "Target": "/workspace", "ReadOnly": False, "BindOptions": bind},
            {"Type": "bind", "Source": "/m", "Target": "/workspace/memo", "ReadOnly": True, "BindOptions": bind},
        ],
        "Tmpfs": {"/tmp": "rw,noexec,nosuid,nodev,size=128m,mode=1777"},
        "ShmSize": 64 * mib,
        "Memory": 64 * mib,
        "MemorySwap": 64 * mib,
        "OomKillDisable": False,
        "OomScoreAdj": 500,
        "PidsLimit": 20,
        "CpuPeriod": 100_000,
        "CpuQuota": 25_000,
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": 10 * mib, "Hard": 10 * mib},
            {"Name": "nofile", "Soft": 8192, "Hard": 8192},
        ],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "Init": False,
    }
    assert rendered == {
        "Image": "image:1",
        "Entrypoint": ["python3"],
        "Cmd": ["-c", "pass"],
        "Env": ["A=1"],
        "User": "10001:10002",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": {LABEL_INSTANCE: "i"},
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "Healthcheck": {"Test": ["NONE"]},
    }


def test_another_runtime_is_named_only_on_request() -> None:
    assert "Runtime" not in render_container(SPEC, "")["HostConfig"]
    assert render_container(replace(SPEC, runtime="runsc"), "")["HostConfig"]["Runtime"] == "runsc"


def test_masks_cover_what_engines_mask_by_default() -> None:
    usual = {"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware"}
    assert usual <= set(HARDENING.masked_paths)
    assert {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} == set(HARDENING.read_only_paths)


def test_temporary_directory_cannot_run_programs() -> None:
    assert {"noexec", "nosuid", "nodev"} <= set(tmp_options(SPEC).split(","))


def test_temporary_directory_runs_programs_only_on_request_and_gains_nothing_else() -> None:
    before, after = tmp_options(SPEC).split(","), tmp_options(replace(SPEC, tmp_exec=True)).split(",")
    assert set(before) ^ set(after) == {"noexec", "exec"}


@pytest.mark.parametrize(
    "broken",
    [
        replace(SPEC, command=()),
        replace(SPEC, uid=0),
        replace(SPEC, gid=0),
        replace(SPEC, env={"": "x"}),
        replace(SPEC, env={"A=": "x"}),
        replace(SPEC, env={"A": "x\0"}),
    ],
)
def test_an_impossible_spec_is_refused(broken: ContainerSpec) -> None:
    with pytest.raises(EngineRefused, match="cannot launch"):
        render_container(broken, "")
