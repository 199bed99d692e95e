"""Control groups: which hierarchy is chosen and what is written, for both versions."""

from __future__ import annotations

from pathlib import Path

from sandboxd.engine.bubblewrap import cgroups
from sandboxd.engine.bubblewrap.cgroups import Hierarchy
from sandboxd.limits import Limits
from sandboxd.models.sandbox import Stats

V1 = """\
25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "26 25 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
LIMITS = Limits(memory_mb=64, cpus=0.5, pids=20)


def test_version_1_is_chosen_if_it_has_the_controllers_even_if_version_2_exists() -> None:
    found = cgroups.parse_hierarchy(V1)
    assert found is not None
    assert found.version == 1
    assert found.roots["cpu"] == found.roots["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")


def test_each_directory_of_a_shared_hierarchy_is_named_once() -> None:
    found = cgroups.parse_hierarchy(V1)
    assert found is not None
    assert len(found.directories("x")) == 3


def test_version_2_has_one_root_for_all_controllers() -> None:
    found = cgroups.parse_hierarchy(V2)
    assert found is not None
    assert found.version == 2
    assert found.directories("x") == [Path("/sys/fs/cgroup/sandboxd/x")]


def test_host_without_control_groups_has_no_hierarchy() -> None:
    assert cgroups.parse_hierarchy("25 20 0:22 / / rw - ext4 /dev/vda rw\n") is None


def test_swap_counts_as_memory_in_both_versions() -> None:
    first = {setting.file: setting.value for setting in cgroups.plan_settings(1, LIMITS)}
    second = {setting.file: setting.value for setting in cgroups.plan_settings(2, LIMITS)}
    assert first["memory.memsw.limit_in_bytes"] == first["memory.limit_in_bytes"] == str(64 * 1024 * 1024)
    assert (second["memory.max"], second["memory.swap.max"]) == (str(64 * 1024 * 1024), "0")


def test_half_a_cpu_is_half_of_the_period() -> None:
    first = {setting.file: setting.value for setting in cgroups.plan_settings(1, LIMITS)}
    second = {setting.file: setting.value for setting in cgroups.plan_settings(2, LIMITS)}
    assert int(first["cpu.cfs_quota_us"]) * 2 == int(first["cpu.cfs_period_us"])
    assert second["cpu.max"] == "50000 100000"


def test_version_2_group_is_limited_joined_and_read(tmp_path: Path) -> None:
    hierarchy = Hierarchy(2, dict.fromkeys(cgroups.CONTROLLERS, tmp_path))
    group = tmp_path / "sandboxd" / "one"
    group.parent.mkdir()
    cgroups.create(hierarchy, "one", LIMITS)
    cgroups.join(hierarchy, "one", 4711)
    assert (group / "pids.max").read_text() == "20"
    assert not (group / "memory.swap.max").exists()  # a plain directory has no such file, and nothing created one
    assert cgroups.members(hierarchy, "one") == {4711}

    (group / "memory.current").write_text("5000\n")
    (group / "memory.stat").write_text("anon 1000\ninactive_file 2000\n")
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    (group / "pids.current").write_text("3\n")
    (group / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert cgroups.read_stats(hierarchy, "one") == Stats(memory_bytes=3000, cpu_seconds=1.5, pids=3)
    assert cgroups.oom_kills(hierarchy, "one") == 1


def test_removing_a_missing_group_succeeds_and_it_has_no_members(tmp_path: Path) -> None:
    hierarchy = Hierarchy(2, dict.fromkeys(cgroups.CONTROLLERS, tmp_path))
    assert cgroups.remove(hierarchy, "never")
    assert cgroups.members(hierarchy, "never") == set()
    assert cgroups.oom_kills(hierarchy, "never") == 0
