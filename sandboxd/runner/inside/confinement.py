"""A thread that, with everything it starts, can read only the agent's directories and one program.

A search resolves names by itself while the agent may swap links under it. Landlock restricts a thread and its children
permanently, so nothing outside is opened, wherever a name leads. The rest of the runner is not restricted.
"""

from __future__ import annotations

import ctypes
import os
import struct

from . import paths
from .container_paths import WORKSPACE
from .failure import Failure, reason_of
from .spawn import NotStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from .spawn import Spawner
    from .worker import Workers

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIRECTORY = 1, 4, 8
_EVERYTHING = (1 << 13) - 1
_LOADER_CACHE = "/etc/ld.so.cache"
_LIBRARY_PLACES = ("/lib", "/lib64", "/usr/lib", "/usr/local/lib")
_libc = ctypes.CDLL(None, use_errno=True)


def is_available() -> bool:
    return int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)) >= 1


class Unconfined(Failure):
    """The kernel refused to confine the thread: nothing was started."""


class Confinement:
    """Starts one program, confined. The thread is restricted at its first use, which most sandboxes never need."""

    def __init__(self, program: str, spawner: Spawner, workers: Workers) -> None:
        self._program = program
        self._spawner = spawner
        self._submit = workers.add_lane()
        self._is_bound = False

    def spawn(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        file_actions: Sequence[tuple[Any, ...]],
        then: Callable[[tuple[int, int]], None],
        refused: Callable[[Failure], None],
    ) -> None:
        """Start the program in the confined thread; back in the loop call `then` with its pid and its mark."""

        def job() -> tuple[int, int]:
            if not self._is_bound:
                self._bind()
            try:
                return self._spawner.spawn(argv, env, cwd, file_actions)
            except NotStarted as error:
                raise Failure("SandboxError", f"cannot start {error.message.strip()}") from None

        self._submit(job, then, refused)

    def _bind(self) -> None:
        try:
            ruleset = _call(_CREATE_RULESET, struct.pack("=Q", _EVERYTHING), 8, 0)
            try:
                for path, access in self._rules():
                    _allow(ruleset, path, access)
                _call(_RESTRICT_SELF, ruleset, 0)
            finally:
                os.close(ruleset)
        except OSError as error:
            raise Unconfined("SandboxError", f"cannot confine the search: {reason_of(error)}") from None
        self._is_bound = True

    def _rules(self) -> Iterator[tuple[str, int]]:
        for root in paths.ROOTS:
            yield os.fsdecode(root), _READ_FILE | _READ_DIRECTORY
        yield self._program, _READ_FILE | _EXECUTE
        yield _LOADER_CACHE, _READ_FILE
        for library in self._find_libraries() or _LIBRARY_PLACES:
            yield library, _READ_FILE | _EXECUTE

    def _find_libraries(self) -> list[str]:
        """Return the libraries that the loader would load for the program, without starting the program."""
        output, child_output = os.pipe2(os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, child_output, 1), (os.POSIX_SPAWN_DUP2, child_output, 2)]
        try:
            # the loop reaps it
            self._spawner.spawn([self._program], {"LD_TRACE_LOADED_OBJECTS": "1"}, WORKSPACE, actions)
        except (NotStarted, Failure):
            os.close(output)
            return []
        finally:
            os.close(child_output)
        with open(output, "rb") as file:
            words = os.fsdecode(file.read(65_536)).split()
        return [word for word in words if word.startswith("/") and os.path.isfile(word)]


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
    finally:
        os.close(fd)


def _call(number: int, *arguments: Any) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock")
    return result
