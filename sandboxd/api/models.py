"""The bodies, queries and answers of the API, as pydantic models: its validation and its OpenAPI schemas.

Unknown fields are refused and values are not converted, so a misspelt field is an error and never ignored.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import AsyncIterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sandboxd.limits import Limits
from sandboxd.runner.calls import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_S,
    MAX_OUTPUT_BYTES,
    MAX_READ_BYTES,
    MAX_STDIN_BYTES,
    MAX_TIMEOUT_S,
    Exec,
    SignalName,
    SignalTarget,
    Terminal,
)
from sandboxd.tools.context import AbsolutePath, SandboxPath

MAX_ARGUMENT_BYTES = 131_071
"""The kernel refuses a longer argument or environment variable."""
MAX_STRINGS = 262_144
"""The most words of a command or variables of an environment: the kernel has no room for more pointers."""
MAX_SANDBOX_ENV_CHARS = 262_144
"""The size limit of an environment that is kept with a sandbox."""

Encoding = Literal["text", "base64"]
OutputEncoding = Literal["text", "base64", "auto"]


def _clean(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise ValueError(
            f"must be at most {MAX_ARGUMENT_BYTES} bytes long, which is what the kernel takes for one argument or "
            "variable; pass more through stdin or a file"
        )
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("must be an absolute path")
    if len(text.encode()) > 4095:
        raise ValueError("must be at most 4095 bytes long")
    return "/" + posixpath.normpath(text).lstrip("/")


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise ValueError("must have names that are not empty and contain no `=`")
    return env


def _small(env: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_SANDBOX_ENV_CHARS:
        raise ValueError(f"must be at most {MAX_SANDBOX_ENV_CHARS} characters in total")
    return env


def _program(command: str | list[str]) -> str | list[str]:
    if not command or not command[0]:
        raise ValueError("must not be empty")
    return command


Argument = Annotated[str, AfterValidator(_clean)]
Directory = Annotated[Argument, AfterValidator(_absolute)]
Environment = Annotated[dict[Argument, Argument], Field(max_length=MAX_STRINGS), AfterValidator(_variables)]
SandboxEnvironment = Annotated[
    dict[Argument, Argument], Field(max_length=1000), AfterValidator(_variables), AfterValidator(_small)
]
Command = Annotated[Argument | Annotated[list[Argument], Field(max_length=MAX_STRINGS)], AfterValidator(_program)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def decode(data: str, encoding: Encoding, field: str) -> bytes:
    if encoding == "text":
        return data.encode()
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{field} must be base64, because encoding is base64") from None


def is_text(*outputs: bytes) -> bool:
    """Return whether all of them are UTF-8, so that text loses nothing."""
    try:
        for output in outputs:
            output.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode(data: bytes, encoding: Encoding) -> str:
    return data.decode("utf-8", "replace") if encoding == "text" else base64.b64encode(data).decode("ascii")


class SandboxBody(Body):
    user: str
    agent: str | None = None
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$")] | None = None
    env: SandboxEnvironment = Field(default_factory=dict)
    limits: Limits | None = None
    network: Literal["none"] = "none"


class ProcessBody(Body):
    command: Command = Field(description="A string runs under bash, a list runs as it is.")
    cwd: Directory = "/workspace"
    env: Environment = Field(default_factory=dict)
    tty: bool = Field(default=False, description="Run the process in a terminal.")
    term: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")] | None = Field(
        default=None, description="The terminal's TERM, xterm-256color by default; `env` may set it as well."
    )
    echo: bool | None = Field(default=None, description="Whether the terminal echoes input; true by default.")
    rows: int | None = Field(default=None, ge=1, le=10_000, description="Rows of the terminal; 24 by default.")
    columns: int | None = Field(default=None, ge=1, le=10_000, description="Columns of the terminal; 80 by default.")

    @model_validator(mode="after")
    def _terminal_is_wanted(self) -> ProcessBody:
        if not self.tty and self._options():
            raise ValueError("term, echo, rows and columns need tty: true")
        return self

    def call(self) -> Exec:
        command = self.command if isinstance(self.command, str) else tuple(self.command)
        return Exec(command, self.cwd, self.env)

    def terminal(self) -> Terminal | None:
        return Terminal(**self._options()) if self.tty else None

    def _options(self) -> dict[str, Any]:
        options = {"term": self.term, "echo": self.echo, "rows": self.rows, "columns": self.columns}
        return {name: value for name, value in options.items() if value is not None}


class ExecBody(Body):
    command: Command = Field(description="A string runs under bash, a list runs as it is.")
    cwd: Directory = "/workspace"
    env: Environment = Field(default_factory=dict)
    stdin: str = ""
    timeout_s: float = Field(
        default=DEFAULT_TIMEOUT_S,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="At most the daemon's setting max_timeout_s, which is 3600 by default.",
    )
    max_output_bytes: int = Field(default=DEFAULT_OUTPUT_BYTES, ge=0, le=MAX_OUTPUT_BYTES)
    merge_stderr: bool = Field(
        default=False, description="Send stderr to stdout, in the order in which both are written."
    )
    encoding: OutputEncoding = Field(
        default="text",
        description="How stdin, stdout and stderr are written in JSON. As text, bytes that are not UTF-8 are replaced. "
        "With `auto` stdin is text, the output is whatever loses nothing, and the answer's `encoding` says which.",
    )

    @model_validator(mode="after")
    def _stdin_fits(self) -> ExecBody:
        if self.stdin and len(self._stdin_bytes()) > MAX_STDIN_BYTES:
            raise ValueError(f"stdin must be at most {MAX_STDIN_BYTES} bytes long; stream it if it is longer")
        return self

    def call(self, stdin: AsyncIterable[bytes] | None = None) -> Exec:
        command = self.command if isinstance(self.command, str) else tuple(self.command)
        given: bytes | AsyncIterable[bytes] = self._stdin_bytes() if stdin is None else stdin
        return Exec(
            command, self.cwd, self.env, given, self.timeout_s, self.max_output_bytes, merge_stderr=self.merge_stderr
        )

    def _stdin_bytes(self) -> bytes:
        encoding: Encoding = "base64" if self.encoding == "base64" else "text"
        return decode(self.stdin, encoding, "stdin") if self.stdin else b""


class StdinBody(Body):
    data: str = ""
    encoding: Encoding = "text"
    eof: bool = Field(default=False, description="Close the process's stdin after this write.")

    @model_validator(mode="after")
    def _data_fits(self) -> StdinBody:
        if len(decode(self.data, self.encoding, "data")) > MAX_STDIN_BYTES:
            raise ValueError(f"data must be at most {MAX_STDIN_BYTES} bytes long")
        return self

    def content(self) -> bytes:
        return decode(self.data, self.encoding, "data")


class SizeBody(Body):
    rows: int = Field(ge=1, le=10_000)
    columns: int = Field(ge=1, le=10_000)


class SignalBody(Body):
    signal: SignalName
    to: SignalTarget | None = Field(
        default=None,
        description="`process`: the process itself. `foreground`: the foreground process group of its terminal. "
        "`children`: everything that it started, but not itself, which interrupts what a shell is running without "
        "ending the shell. By default the foreground of a terminal, and without one the process.",
    )


class KillQuery(Query):
    signal: SignalName = Field(
        default="KILL", description="The signal that the process and all its descendants get first."
    )
    grace_s: float = Field(
        default=5,
        ge=0,
        le=600,
        allow_inf_nan=False,
        description="Seconds until the processes that are left are killed.",
    )


class DestroyQuery(Query):
    missing_ok: bool = Field(default=False, description="Whether a missing sandbox counts as removed.")


class ProcessQuery(Query):
    offset: int = Field(default=0, ge=0, le=2**53, description="The offset to read from.")
    limit: int = Field(
        default=262_144,
        ge=1,
        le=MAX_READ_BYTES,
        description="The most bytes to return; the daemon keeps no more than this maximum.",
    )
    wait_s: float = Field(
        default=0,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="Seconds to wait for output when there is none yet.",
    )
    encoding: OutputEncoding = Field(default="text", description="How `data` is written in JSON, as for a command.")


class FileQuery(Query):
    path: SandboxPath = Field(description="Absolute path under /workspace, /tmp or /var/tmp.")


class ReadableFileQuery(Query):
    path: AbsolutePath = Field(
        description="Absolute path under /workspace, /skills, /tmp or /var/tmp, or of a file that every user may read."
    )


class EventsQuery(Query):
    after: int | None = Field(default=None, ge=0, le=2**63, description="Start after this id, like Last-Event-ID.")
    follow: bool = Field(
        default=True, description="Whether to wait for new events; false ends the stream after past ones."
    )


class SandboxAnswer(BaseModel):
    tenant: str
    session: str
    user: str
    agent: str | None
    state: str
    engine: str
    container: str | None
    created_at: datetime
    from_pool: bool
    cause: str | None
    image: str
    limits: Limits


class SandboxesAnswer(BaseModel):
    items: list[SandboxAnswer]


class StatsAnswer(BaseModel):
    memory_bytes: int
    cpu_seconds: float
    pids: int


class ExecAnswer(BaseModel):
    exit_code: int | None = Field(description="128 + n after signal n; null after a timeout.")
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool
    duration_ms: float
    limits_hit: list[str] = Field(description="Limits that the kernel enforced during the call: memory, pids.")
    encoding: Encoding | None = Field(
        default=None, description="The encoding of stdout and stderr, if the request said `auto`."
    )


class ProcessAnswer(BaseModel):
    id: str
    command: str
    started_at: datetime | None
    running: bool
    exit_code: int | None
    output_bytes: int


class KilledAnswer(ProcessAnswer):
    ended_by: SignalName = Field(description="The signal that ended the last process: the requested one, or KILL.")


class SignalAnswer(BaseModel):
    signalled: int = Field(description="The number of processes that got the signal.")


class StdinAnswer(BaseModel):
    taken_bytes: int = Field(
        description="How much of the data the process took; send the rest again. stdin is closed only after all of it. "
        "An error means that nothing was taken, unless it says that this is unknown."
    )


class ProcessesAnswer(BaseModel):
    items: list[ProcessAnswer]


class ProcessOutputAnswer(BaseModel):
    process: ProcessAnswer
    offset: int = Field(description="The offset of data: past the requested one if older output was discarded.")
    data: str
    next_offset: int
    encoding: Encoding | None = Field(default=None, description="The encoding of data, if the request said `auto`.")


class FileAnswer(BaseModel):
    path: str
    size_bytes: int
    mode: int
    modified_at: datetime | None


class ToolAnswer(BaseModel):
    ok: bool
    content: str = Field(description="The text for the model.")
    details: dict[str, Any]


class ToolDescription(BaseModel):
    name: str
    description: str
    input_schema: dict[str, Any]


class ToolsAnswer(BaseModel):
    items: list[ToolDescription]


class CheckAnswer(BaseModel):
    name: str
    ok: bool
    detail: str


class ReadyAnswer(BaseModel):
    ready: bool
    engine: CheckAnswer
    store: CheckAnswer
    disk: CheckAnswer


class HealthAnswer(BaseModel):
    status: Literal["ok"]
    version: str


class Problem(BaseModel):
    """Every error of the API, as application/problem+json."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool
