"""The bodies, queries and answers of the wire, as pydantic models: the checks of the API and its OpenAPI schemas.

Unknown fields are refused and nothing is converted, so a typing error of a caller is never half understood.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sandboxd.limits import Limits
from sandboxd.runner.calls import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_S,
    MAX_OUTPUT_BYTES,
    MAX_STDIN_BYTES,
    MAX_TIMEOUT_S,
    Exec,
)
from sandboxd.tools.context import SandboxPath

MAX_ARGUMENT_BYTES = 131_071
"""The kernel refuses a longer single argument or variable."""
MAX_ARGUMENTS_BYTES = 1_048_576

Encoding = Literal["text", "base64"]


def _clean(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL character")
    if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"must be at most {MAX_ARGUMENT_BYTES} bytes long")
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
            raise ValueError("must have names that are not empty and hold no `=`")
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_ARGUMENTS_BYTES // 4:
        raise ValueError(f"must be at most {MAX_ARGUMENTS_BYTES // 4} characters in all")
    return env


def _program(command: str | list[str]) -> str | list[str]:
    if not command or not command[0]:
        raise ValueError("must not be empty")
    if isinstance(command, list) and sum(map(len, command)) > MAX_ARGUMENTS_BYTES // 4:
        raise ValueError(f"must be at most {MAX_ARGUMENTS_BYTES // 4} characters in all")
    return command


Argument = Annotated[str, AfterValidator(_clean)]
Directory = Annotated[Argument, AfterValidator(_absolute)]
Environment = Annotated[dict[Argument, Argument], Field(max_length=1000), AfterValidator(_variables)]
Command = Annotated[Argument | list[Argument], AfterValidator(_program)]


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
        raise ValueError(f"{field} must be base64, as encoding says") from None


def encode(data: bytes, encoding: Encoding) -> str:
    return data.decode("utf-8", "replace") if encoding == "text" else base64.b64encode(data).decode("ascii")


class SandboxBody(Body):
    user: str
    agent: str | None = None
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$")] | None = None
    env: Environment = Field(default_factory=dict)
    limits: Limits | None = None
    network: Literal["none"] = "none"


class ProcessBody(Body):
    command: Command = Field(description="A string runs under bash, a list runs as it is.")
    cwd: Directory = "/workspace"
    env: Environment = Field(default_factory=dict)
    tty: bool = Field(default=False, description="Give the process a terminal of its own.")

    def call(self) -> Exec:
        command = self.command if isinstance(self.command, str) else tuple(self.command)
        return Exec(command, self.cwd, self.env)


class ExecBody(Body):
    command: Command = Field(description="A string runs under bash, a list runs as it is.")
    cwd: Directory = "/workspace"
    env: Environment = Field(default_factory=dict)
    stdin: str = ""
    timeout_s: float = Field(default=DEFAULT_TIMEOUT_S, gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)
    max_output_bytes: int = Field(default=DEFAULT_OUTPUT_BYTES, ge=0, le=MAX_OUTPUT_BYTES)
    encoding: Encoding = Field(
        default="text",
        description="How stdin, stdout and stderr are written in JSON. As text, bytes that are not UTF-8 are replaced.",
    )

    @model_validator(mode="after")
    def _stdin_fits(self) -> ExecBody:
        if self.stdin and len(decode(self.stdin, self.encoding, "stdin")) > MAX_STDIN_BYTES:
            raise ValueError(f"stdin must be at most {MAX_STDIN_BYTES} bytes long")
        return self

    def call(self) -> Exec:
        command = self.command if isinstance(self.command, str) else tuple(self.command)
        stdin = decode(self.stdin, self.encoding, "stdin") if self.stdin else b""
        return Exec(command, self.cwd, self.env, stdin, self.timeout_s, self.max_output_bytes)


class StdinBody(Body):
    data: str = ""
    encoding: Encoding = "text"
    eof: bool = Field(default=False, description="Close the process's stdin after this.")

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


class ProcessQuery(Query):
    offset: int = Field(default=0, ge=0, le=2**53, description="Where to start reading.")
    limit: int = Field(default=262_144, ge=1, le=1_048_576, description="How many bytes at most.")
    wait_s: float = Field(
        default=0, ge=0, le=60, allow_inf_nan=False, description="Wait so long for output when there is none yet."
    )
    encoding: Encoding = "text"


class FileQuery(Query):
    path: SandboxPath = Field(description="Absolute path under /workspace, /skills or /tmp.")


class EventsQuery(Query):
    after: int | None = Field(default=None, ge=0, le=2**63, description="Start after this id; as Last-Event-ID.")
    follow: bool = Field(default=True, description="False ends the stream after what is there now.")


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
    limits_hit: list[str] = Field(description="Limits the kernel enforced meanwhile: memory, pids.")


class ProcessAnswer(BaseModel):
    id: str
    command: str
    started_at: datetime | None
    running: bool
    exit_code: int | None
    output_bytes: int


class StdinAnswer(BaseModel):
    taken_bytes: int = Field(
        description="How much of the data the process took; send the rest again. stdin is closed only after all of it. "
        "An error means that nothing was taken, unless it says that this is unknown."
    )


class ProcessesAnswer(BaseModel):
    items: list[ProcessAnswer]


class ProcessOutputAnswer(BaseModel):
    process: ProcessAnswer
    offset: int = Field(description="Where data starts: later than asked for when older output has been dropped.")
    data: str
    next_offset: int


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
