"""A background process: the requests that start, feed, signal and end one, its record and its output."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_serializer, model_validator

from sandboxd.models.command import MAX_STDIN_BYTES, Command, Directory, Environment
from sandboxd.models.wire import (
    AnswerModel,
    BodyModel,
    Encoding,
    OutputEncoding,
    QueryModel,
    decode,
    encode,
    encoding_is_optional,
)
from sandboxd.runner.inside.container_paths import WORKSPACE

MAX_READ_BYTES = 1_048_576
"""How much of a process's output the runner keeps, and so the most that one read can return."""

SignalName = Literal[
    "HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "PIPE", "ALRM", "TERM", "CONT", "STOP", "TSTP", "WINCH"
]
TermName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
SignalTarget = Literal["process", "foreground", "children"]
"""The process itself; the foreground process group of its terminal; everything it started, but not itself."""


class ProcessBody(BodyModel):
    command: Command = Field(description="A string runs under bash, a list runs as it is.")
    cwd: Directory = WORKSPACE
    env: Environment = Field(default_factory=dict)
    tty: bool = Field(default=False, description="Run the process in a terminal.")
    term: TermName | None = Field(
        default=None, description="The terminal's TERM, xterm-256color by default; `env` may set it as well."
    )
    echo: bool | None = Field(default=None, description="Whether the terminal echoes input; true by default.")
    rows: int | None = Field(default=None, ge=1, le=10_000, description="Rows of the terminal; 24 by default.")
    columns: int | None = Field(default=None, ge=1, le=10_000, description="Columns of the terminal; 80 by default.")

    @model_validator(mode="after")
    def _terminal_is_wanted(self) -> Self:
        if not self.tty and self.terminal_options():
            raise ValueError("term, echo, rows and columns need tty: true")
        return self

    def terminal_options(self) -> dict[str, Any]:
        """Return the options of the terminal that the request sets."""
        options = {"term": self.term, "echo": self.echo, "rows": self.rows, "columns": self.columns}
        return {name: value for name, value in options.items() if value is not None}


class ProcessQuery(QueryModel):
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


class StdinBody(BodyModel):
    data: str = ""
    encoding: Encoding = "text"
    eof: bool = Field(default=False, description="Close the process's stdin after this write.")

    @model_validator(mode="after")
    def _data_fits(self) -> Self:
        if len(self.content()) > MAX_STDIN_BYTES:
            raise ValueError(f"data must be at most {MAX_STDIN_BYTES} bytes long")
        return self

    def content(self) -> bytes:
        return decode(self.data, self.encoding, "data")


class SizeBody(BodyModel):
    rows: int = Field(ge=1, le=10_000)
    columns: int = Field(ge=1, le=10_000)


class SignalBody(BodyModel):
    signal: SignalName
    to: SignalTarget | None = Field(
        default=None,
        description="`process`: the process itself. `foreground`: the foreground process group of its terminal. "
        "`children`: everything that it started, but not itself, which interrupts what a shell is running without "
        "ending the shell. By default the foreground of a terminal, and without one the process.",
    )


class KillQuery(QueryModel):
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


class Process(AnswerModel):
    """A background process. Its stdout and stderr are one stream of bytes, numbered from 0."""

    model_config = ConfigDict(title="ProcessAnswer")

    id: str
    command: str
    started_at: datetime | None
    running: bool
    exit_code: int | None
    output_bytes: int = Field(description="How many bytes it has written, which is the offset where new output starts.")
    tty: bool | None = Field(
        default=None, description="Whether it has a terminal; null if the sandbox is older than this field."
    )
    context: str | None = Field(
        default=None, description="The id of the context that it serves; null for a process that a client started."
    )
    ended_by: SignalName | None = Field(
        default=None, description="In the answer to a kill: the signal that ended the last process."
    )


class KilledProcess(Process):
    """A background process after a kill."""

    model_config = ConfigDict(title="KilledAnswer")

    ended_by: SignalName = Field(description="The signal that ended the last process: the requested one, or KILL.")


class ProcessList(AnswerModel):
    model_config = ConfigDict(title="ProcessesAnswer")

    items: list[Process]


class ProcessOutput(AnswerModel):
    """Some output of a process, as bytes. In JSON it is text or base64."""

    model_config = ConfigDict(title="ProcessOutputAnswer", json_schema_extra=encoding_is_optional)

    process: Process
    offset: int = Field(description="The offset of data: past the requested one if older output was discarded.")
    data: bytes
    next_offset: int
    encoding: Encoding = Field(default="text", description="The encoding of data; text if it is not sent.")

    @model_validator(mode="before")
    @classmethod
    def _decoded(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or not isinstance(fields.get("data"), str):
            return fields
        encoding: Encoding = "base64" if fields.get("encoding") == "base64" else "text"
        return {**fields, "data": decode(fields["data"], encoding, "data")}

    @field_serializer("data", when_used="json")
    def _encoded(self, data: bytes) -> str:
        return encode(data, self.encoding)


class Signalled(AnswerModel):
    model_config = ConfigDict(title="SignalAnswer")

    signalled: int = Field(description="The number of processes that got the signal.")


class StdinTaken(AnswerModel):
    model_config = ConfigDict(title="StdinAnswer")

    taken_bytes: int = Field(
        description="How much of the data the process accepted; send the rest again. stdin is closed only after all "
        "of it. An error means that nothing was taken, unless it says that this is unknown."
    )
