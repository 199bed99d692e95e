"""A terminal over a WebSocket: the query that opens it, and the JSON text messages beside its bytes."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from sandboxd.models.paths import CleanText
from sandboxd.models.process import TermName
from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel

LOGIN_SHELL = "exec bash -l"


class PtyQuery(QueryModel):
    command: CleanText | None = Field(
        default=None, min_length=1, description=f"The command to start in a new terminal; `{LOGIN_SHELL}` by default."
    )
    process: str | None = Field(default=None, description="The process to attach to, instead of starting one.")
    offset: int | None = Field(
        default=None,
        ge=0,
        le=2**53,
        description="With `process`: the offset of the first byte to send; by default about the last screenful.",
    )
    cols: int | None = Field(default=None, ge=1, le=10_000, description="Columns of the terminal; 80 for a new one.")
    rows: int | None = Field(default=None, ge=1, le=10_000, description="Rows of the terminal; 24 for a new one.")
    term: TermName | None = Field(default=None, description="TERM of a new terminal; xterm-256color by default.")

    @model_validator(mode="after")
    def _starts_or_attaches(self) -> Self:
        if self.process is not None and (self.command is not None or self.term is not None):
            raise ValueError("process excludes command and term: it attaches to a terminal that runs")
        if self.process is None and self.offset is not None:
            raise ValueError("offset needs process: a new terminal starts at 0")
        if self.process is not None and (self.cols is None) != (self.rows is None):
            raise ValueError("cols and rows must be given together")
        return self


class TerminalResize(BodyModel):
    """From the client: the size of its window. Ignored by a process without a terminal."""

    type: Literal["resize"]
    cols: int = Field(ge=1, le=10_000)
    rows: int = Field(ge=1, le=10_000)


class TerminalEof(BodyModel):
    """From the client: the end of its input. Closes stdin; in a terminal it is Ctrl-D."""

    type: Literal["eof"]


ClientMessage = Annotated[TerminalResize | TerminalEof, Field(discriminator="type")]


def read_client_message(text: str) -> TerminalResize | TerminalEof:
    """Return a client's message; raise pydantic's ValidationError for anything else."""
    return _client_messages().validate_json(text)


@cache
def _client_messages() -> TypeAdapter[TerminalResize | TerminalEof]:
    return TypeAdapter(ClientMessage)


class TerminalAttached(AnswerModel):
    """From the daemon, first: the process, and the offset of the first byte that follows."""

    type: Literal["attached"] = "attached"
    process: str
    offset: int


class TerminalDropped(AnswerModel):
    """From the daemon: this much output was discarded before the client read it; what follows starts at `offset`."""

    type: Literal["dropped"] = "dropped"
    size_bytes: int
    offset: int


class TerminalExit(AnswerModel):
    """From the daemon, last: how the process ended."""

    type: Literal["exit"] = "exit"
    exit_code: int | None


class TerminalFailure(AnswerModel):
    """From the daemon, last: why it cannot go on, as in a problem. The process may still run."""

    type: Literal["error"] = "error"
    code: str
    detail: str
    retryable: bool
