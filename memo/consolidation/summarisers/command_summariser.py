"""CommandSummariser: summarise with a command that reads one JSON object from stdin and writes one to stdout.

The command runs once for each question, as an unprivileged user, in its own session and with an environment that
inherits nothing. At the time limit its whole process group is killed.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from memo.consolidation.budget import Budget
from memo.consolidation.profile import ProfileDraft
from memo.consolidation.summarisers import json_contract
from memo.consolidation.summarisers.summariser import BadAnswer, ProfileRequest, SessionDraft, SummariserUnavailable
from memo.consolidation.transcript import Transcript
from memo.documents import sha256_of
from memo.errors import InvalidContent
from memo.tokens import estimate_tokens

A = TypeVar("A", bound=json_contract.SessionAnswer | json_contract.ProfileAnswer | json_contract.ConversationAnswer)
NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """`user` is a name or uid. As root the default is `nobody`, and running as root is refused."""

    user: str | int | None = None
    timeout_s: float = 120.0
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    )


class CommandSummariser:
    def __init__(self, command: Sequence[str], options: CommandOptions | None = None) -> None:
        if not command or isinstance(command, str):
            raise InvalidContent("cannot use this command: it must be a list that starts with the program")
        self._command = list(command)
        self._options = options or CommandOptions()
        self._identity = _identity(self._options.user)

    @property
    def name(self) -> str:
        return f"command/{sha256_of(json.dumps(self._command).encode())[:16]}/1"

    async def aclose(self) -> None:
        return None

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        question = {"task": "session", **json_contract.session_question(transcript)}
        return json_contract.session_draft(await self._ask(question, json_contract.SessionAnswer, budget), transcript)

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        question = {"task": "profile", **json_contract.profile_question(request)}
        return json_contract.profile_draft(await self._ask(question, json_contract.ProfileAnswer, budget), request)

    async def summarise_conversation(self, transcript: Transcript, budget: Budget) -> str:
        question = {"task": "conversation", **json_contract.conversation_question(transcript)}
        return (await self._ask(question, json_contract.ConversationAnswer, budget)).summary

    async def _ask(self, question: dict[str, Any], kind: type[A], budget: Budget) -> A:
        encoded = json.dumps(question, ensure_ascii=False)
        budget.begin_call(estimate_tokens(encoded))
        output = await self._run(encoded.encode() + b"\n")
        budget.end_call(estimate_tokens(encoded) + len(output) // 4)
        try:
            text = output.decode()
        except UnicodeDecodeError:
            raise BadAnswer("cannot use the answer: it is not UTF-8") from None
        return json_contract.parse_answer(kind, text)

    async def _run(self, question: bytes) -> bytes:
        process = await self._start(question)
        exited = os.pidfd_open(process.pid)
        try:
            with anyio.fail_after(self._options.timeout_s):
                output = await _drain(process)
                if len(output) <= json_contract.MAX_ANSWER_BYTES:  # otherwise it blocks on the unread rest
                    await anyio.wait_readable(exited)
        except TimeoutError:
            raise BadAnswer(
                f"cannot use the summariser's answer: timed out after {self._options.timeout_s:g} s"
            ) from None
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, exited)
        if len(output) > json_contract.MAX_ANSWER_BYTES:
            raise BadAnswer(f"cannot use the answer: it is longer than {json_contract.MAX_ANSWER_BYTES} bytes")
        if process.returncode != 0:
            raise BadAnswer(f"cannot use the summariser's answer: it exited with status {process.returncode}")
        return output

    async def _start(self, question: bytes) -> subprocess.Popen[bytes]:
        """Start the command with the question in a memfd as stdin: it needs no writer and may stop reading early."""
        stdin = os.memfd_create("question")
        try:
            os.write(stdin, question)
            os.lseek(stdin, 0, os.SEEK_SET)
            # Not anyio.open_process: uvloop cannot start a process as another user.
            return await anyio.to_thread.run_sync(self._spawn, stdin)
        except OSError as error:
            raise SummariserUnavailable(f"cannot start the summariser {self._command[0]}: {error.strerror}") from error
        finally:
            os.close(stdin)

    def _spawn(self, stdin: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may quote the user, so it must not reach the log
            text=False,
            cwd="/",
            env=self._options.environment,
            start_new_session=True,
            **self._identity,
        )


async def _drain(process: subprocess.Popen[bytes]) -> bytes:
    """Read to the end, or just past the limit if the answer is too long."""
    output = b""
    if process.stdout is None:
        return output
    while len(output) <= json_contract.MAX_ANSWER_BYTES:
        await anyio.wait_readable(process.stdout)
        block = os.read(process.stdout.fileno(), 65_536)
        if not block:
            break
        output += block
    return output


async def _end(process: subprocess.Popen[bytes], exited: int) -> None:
    """Kill the process group and wait for it, so that no process outlives the question.

    The process is reaped last: until then its pid, and with it the group id, cannot be reused.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await anyio.wait_readable(exited)
    process.wait()
    os.close(exited)
    if process.stdout is not None:
        process.stdout.close()


def _identity(user: str | int | None) -> dict[str, Any]:
    """Return the Popen parameters for the user that the command runs as."""
    if os.geteuid() != 0:
        if user is not None and _lookup(user).pw_uid != os.geteuid():
            raise InvalidContent(f"cannot run the summariser as {user}: only root can switch to another user")
        return {}
    found = _lookup(NOBODY if user is None else user)
    if found.pw_uid == 0:
        raise InvalidContent("cannot run the summariser as root: name an unprivileged user")
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _lookup(user: str | int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        if isinstance(user, int) and user > 0:  # a uid needs no name
            return pwd.struct_passwd((str(user), "x", user, user, "", "/", ""))
        raise InvalidContent(f"cannot run the summariser as {user}: no such user") from None
