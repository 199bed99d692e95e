"""The table of system calls: what it refuses, what it allows, and that a real kernel agrees."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.engine import seccomp

INSIDE = Path(__file__).parents[1] / "escape" / "inside"

NEVER = [
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "kexec_load",
    "kexec_file_load",
    "mount",
    "umount",
    "umount2",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "unshare",
    "setns",
    "pivot_root",
    "chroot",
    "swapon",
    "swapoff",
    "reboot",
    "acct",
    "quotactl",
    "quotactl_fd",
    "open_by_handle_at",
    "name_to_handle_at",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "pidfd_getfd",
    "lookup_dcookie",
    "socketcall",
    "iopl",
    "ioperm",
    "modify_ldt",
    "settimeofday",
    "stime",
    "clock_settime",
    "sethostname",
    "setdomainname",
    "syslog",
    "vhangup",
    "nfsservctl",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
    "fanotify_init",
    "move_pages",
    "migrate_pages",
    "mbind",
    "set_mempolicy",
    "clone3",
]

# Becomes an unprivileged process under the filter, then runs the given program.
UNDER_FILTER = """
import ctypes, os, sys
program = open(sys.argv[1], "rb").read()
class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(10001, 10001, 10001)
    os.setresuid(10001, 10001, 10001)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Fprog(len(program) // 8, program)), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """Return a directory that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def filter_file(open_dir: Path) -> Path:
    program = seccomp.bpf_program()
    assert program is not None
    file = open_dir / "filter.bpf"
    file.write_bytes(program)
    file.chmod(0o644)
    return file


def run_under(filter_file: Path, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/env", "python3", "-c", UNDER_FILTER, str(filter_file), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd or "/")},
    )


@pytest.mark.parametrize("name", NEVER)
def test_dangerous_call_is_never_allowed(name: str) -> None:
    assert name not in seccomp.allowed_calls()


def test_no_call_is_listed_twice() -> None:
    free = [call for rule in seccomp.RULES if not rule.conditions for call in rule.calls]
    bound = {call for rule in seccomp.RULES if rule.conditions for call in rule.calls}
    assert len(free) == len(set(free))
    assert not bound & set(free), "a rule without a condition would override those with one"


def test_profile_refuses_by_default_and_allows_no_32_bit_calls() -> None:
    profile = json.loads(seccomp.profile_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert [entry["architecture"] for entry in profile["archMap"]] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]
    assert all(entry["subArchitectures"] == [] for entry in profile["archMap"])
    assert len(profile["syscalls"]) == len(seccomp.RULES)


def test_clone3_reports_that_it_does_not_exist() -> None:
    profile = json.loads(seccomp.profile_text())
    (entry,) = [entry for entry in profile["syscalls"] if "clone3" in entry["names"]]
    assert (entry["action"], entry["errnoRet"]) == ("SCMP_ACT_ERRNO", errno.ENOSYS)


def test_clone_is_compared_through_the_mask_of_namespace_flags() -> None:
    profile = json.loads(seccomp.profile_text())
    (entry,) = [entry for entry in profile["syscalls"] if entry["names"] == ["clone"]]
    assert entry["args"] == [{"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]


def test_the_conditions_cover_every_value_but_one() -> None:
    rules = [rule for rule in seccomp.RULES if rule.calls == ("ioctl",)]

    def is_allowed(value: int) -> bool:
        return any(
            all(
                condition.mask is not None and value & condition.mask == condition.value
                for condition in rule.conditions
            )
            for rule in rules
        )

    tiocsti = 0x5412
    assert not is_allowed(tiocsti)
    assert not is_allowed(tiocsti | 1 << 32), "the kernel looks at 32 bits only"
    assert all(is_allowed(tiocsti ^ 1 << bit) for bit in range(32))
    assert is_allowed(0) and is_allowed(0xFFFF_FFFF)  # noqa: PT018 - both ends


def test_the_kernel_refuses_every_probe_under_the_bpf_program(filter_file: Path) -> None:
    script = f"""
import json, sys
sys.path.insert(0, {str(INSIDE)!r})
sys.dont_write_bytecode = True
import kernel
from doors import PROBES
outcomes = {{name: attempt() for name, attempt in PROBES.items()}}
json.dump({{name: detail for name, (ok, detail) in outcomes.items() if not ok}}, sys.stdout)
"""
    done = run_under(filter_file, "python3", "-c", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


def test_ordinary_work_succeeds_under_the_bpf_program(filter_file: Path, open_dir: Path) -> None:
    work = open_dir / "work"
    work.mkdir()
    work.chmod(0o777)
    script = (Path(__file__).parents[1] / "conformance" / "ordinary_work.py").read_text()
    done = run_under(filter_file, "python3", "-c", script, str(work), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all done" in done.stdout


def test_a_call_newer_than_the_library_does_not_exist(filter_file: Path) -> None:
    script = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(530); print(ctypes.get_errno())"
    assert run_under(filter_file, "python3", "-c", script).stdout.strip() == str(errno.ENOSYS)


def test_without_the_library_there_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    script = "from sandboxd.engine import seccomp; print(seccomp.bpf_program())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.strip() == "None"
