"""Starts the agent's processes: program, environment, descriptors. They inherit nothing from the runner.

`posix_spawn` costs one vfork whatever the size of the runner. Each process leads a session of its own and sees
descriptors 0 to 2 only: all others are close-on-exec.
"""

from __future__ import annotations

import errno
import os
import signal
import threading

from . import paths
from .container_paths import WORKSPACE
from .failure import Failure, reason_of
from .tree import stop_if_held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .hub import Hub
    from .marks import Marks

BASE_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": WORKSPACE,
    "USER": "agent",
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
_OOM_FIRST = b"1000"  # the container, PID 1 included, may already have 500
_FIRST_PAUSE_S = 0.0002
_SETTLED_AFTER_S = 0.01
_MAX_CHILDREN = 64
_LONGEST_PAUSE_S = 1.0
_MAX_SHOWN_CHARACTERS = 1_024
MAX_STRING_BYTES = 131_072
"""The kernel's MAX_ARG_STRLEN: the limit of one argument or variable, with its final NUL."""


class NotStarted(Exception):
    """The program is missing or not executable. As in a shell, this is a result, not an error."""

    def __init__(self, exit_code: int, name: str, reason: str) -> None:
        shown = name if len(name) <= _MAX_SHOWN_CHARACTERS else name[:_MAX_SHOWN_CHARACTERS] + "..."
        super().__init__(reason)
        self.exit_code = exit_code
        self.message = f"{shown}: {reason}\n"


def find_shell() -> tuple[str, ...]:
    for path in ("/bin/bash", "/usr/bin/bash"):
        if os.access(path, os.X_OK):
            return (path, "-lc")
    return ("/bin/sh", "-c")


def find_program(name: str, search_path: str) -> str:
    """Return the path of a program, looked up in the command's PATH, not in the runner's."""
    if "/" in name or not name or "\0" in name:
        return name
    candidates = [(directory or ".") + "/" + name for directory in search_path.split(":")]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    if any(os.path.isfile(candidate) for candidate in candidates):
        raise NotStarted(126, name, "permission denied")
    raise NotStarted(127, name, "command not found")


def ignored_signals() -> list[int]:
    """Return the signals that this process ignores, the only ones that an exec does not reset by itself.

    Resetting all 64 would cost a system call for each, in every process that is started.
    """
    return [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]


def make_env(created: Mapping[str, str], call: Mapping[str, str], cwd: str) -> dict[str, str]:
    return {**BASE_ENV, "PWD": cwd, **created, **call}


class Spawner:
    """Starts processes, each with its own mark, one at a time.

    The runner sets its own working directory and mark, and the child inherits them. That is safe, because nothing else
    uses them: the file workers use absolute paths and descriptors only.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._ignored = ignored_signals()
        self._one_at_a_time = threading.Lock()

    def spawn(
        self, argv: list[str], env: dict[str, str], cwd: str, file_actions: Sequence[tuple[Any, ...]]
    ) -> tuple[int, int]:
        """Start a process and return its pid and its mark. If it raises NotStarted or Failure, nothing was started."""
        try:
            with self._one_at_a_time:
                paths.enter(cwd)
                program = find_program(argv[0], env.get("PATH", BASE_ENV["PATH"]))
                mark = self._marks.put_on_next_child()
                pid = os.posix_spawn(
                    program, argv, env, file_actions=file_actions, setsid=True, setsigmask=(), setsigdef=self._ignored
                )
        except OSError as error:
            raise _refusal(error, argv, env) from None
        except ValueError:
            raise Failure(
                "InvalidRequest", "cannot run: the command or its environment contains a NUL or invalid UTF-8"
            ) from None
        stop_if_held(pid)
        return pid, mark


def prefer_for_oom(hub: Hub, pid: int, pause_s: float = _FIRST_PAUSE_S) -> None:
    """Make the kernel's OOM killer choose the command, never PID 1, whose death would end the sandbox.

    While an exec is not quite over, /proc gives the process another owner, so this is retried. Its later children
    inherit the setting; earlier ones do not have it.
    """
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        if pause_s <= _LONGEST_PAUSE_S:  # otherwise the process made itself unreadable
            hub.after(pause_s, lambda: prefer_for_oom(hub, pid, pause_s * 2))
        return
    except OSError:
        return  # already gone
    try:
        if os.read(fd, 16).startswith(_OOM_FIRST):
            return  # inherited
        os.write(fd, _OOM_FIRST)
    except OSError:
        return
    finally:
        os.close(fd)
    _prefer_children(hub, pid)
    hub.after(_SETTLED_AFTER_S, lambda: _prefer_children(hub, pid))  # one may have been started in the meantime


def _prefer_children(hub: Hub, pid: int) -> None:
    for child in _children_of(pid):
        prefer_for_oom(hub, child)


def _children_of(pid: int) -> list[int]:
    try:
        fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []  # already gone, or a kernel without this file
    try:
        return [int(number) for number in os.read(fd, 1024).split()[:_MAX_CHILDREN]]
    except OSError:
        return []
    finally:
        os.close(fd)


def _refusal(error: OSError, argv: list[str], env: dict[str, str]) -> Exception:
    name, reason = argv[0], reason_of(error)
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return Failure("LimitReached", f"cannot start a process: the sandbox has no room for another one ({reason})")
    if error.errno == errno.E2BIG:
        return _too_long(argv, env)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotStarted(127, name, reason)
    return NotStarted(126, name, reason)


def _too_long(argv: list[str], env: dict[str, str]) -> Failure:
    """Return why the kernel refused the size, and what it would accept."""
    strings = [*argv, *(f"{name}={value}" for name, value in env.items())]
    sizes = [len(string.encode()) + 1 for string in strings]
    return Failure(
        "InvalidRequest",
        f"cannot run: the command and its environment have {sum(sizes)} bytes in {len(sizes)} strings, the longest "
        f"{max(sizes)}; the kernel accepts {MAX_STRING_BYTES} for one string and {os.sysconf('SC_ARG_MAX')} in all, "
        "pointers included; pass the data through stdin or a file",
    )
