"""A context: the request for one, its record, a run of code in it, and what the run showed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sandboxd.models.command import DEFAULT_TIMEOUT_S, MAX_OUTPUT_BYTES, MAX_TIMEOUT_S
from sandboxd.models.wire import AnswerModel, BodyModel

DEFAULT_RUN_OUTPUT_BYTES = 4_194_304
"""More than for a command, because a picture counts as well."""
MAX_CODE_CHARS = 1_000_000

ContextName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Language = Literal["python"]
ContextState = Literal["starting", "idle", "busy", "dead"]
OutputType = Literal["stdout", "stderr", "result", "display", "error"]
Loss = Literal["oom", "killed", "exited", "stuck", "restarted"]


class ContextBody(BodyModel):
    language: Language = "python"
    name: ContextName | None = Field(default=None, description="Its id; one is chosen if it is left out.")


class RunBody(BodyModel):
    code: str = Field(min_length=1, max_length=MAX_CODE_CHARS)
    timeout_s: float = Field(
        default=DEFAULT_TIMEOUT_S,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="Seconds after which the code is interrupted. At most the daemon's setting max_timeout_s.",
    )
    max_output_bytes: int = Field(
        default=DEFAULT_RUN_OUTPUT_BYTES,
        ge=0,
        le=MAX_OUTPUT_BYTES,
        description="The most bytes of all outputs together, as JSON. Text beyond it is cut, other values are omitted.",
    )


class Context(AnswerModel):
    """A process that runs code and keeps its variables between runs."""

    model_config = ConfigDict(title="ContextAnswer")

    id: str
    language: str
    state: str = Field(
        description="`starting`, `idle`, `busy`, or `dead`: its kernel has ended, and the next run starts another one."
    )
    created_at: datetime | None
    execution_count: int = Field(description="The number of the last run since its kernel started.")


class ContextList(AnswerModel):
    model_config = ConfigDict(title="ContextsAnswer")

    items: list[Context]


class RunOutput(AnswerModel):
    """Something that code printed, returned or displayed."""

    model_config = ConfigDict(title="RunOutputAnswer")

    type: str = Field(
        description="`stdout` and `stderr`: text. `result`: the value of the last expression. `display`: what the code "
        "displayed, such as a figure. `error`: the exception that ended the run."
    )
    data: dict[str, Any] = Field(
        default_factory=dict,
        description="By media type: text as it is, pictures in base64, JSON as a value. Text of `stdout` and `stderr` "
        "is `text/plain`.",
    )
    omitted: dict[str, int] = Field(
        default_factory=dict, description="Values that were left out because they are too large, and their sizes."
    )
    ename: str | None = Field(default=None, description="The class of the exception; KernelDied if the kernel ended.")
    evalue: str | None = Field(default=None, description="The message of the exception.")
    traceback: str | None = Field(default=None, description="The traceback as plain text, without colours.")


class RunOutcome(AnswerModel):
    """How a run ended, without its outputs."""

    ok: bool = Field(description="Whether the code ran to its end without an exception.")
    execution_count: int
    timed_out: bool = Field(description="Whether it was interrupted because it took longer than timeout_s.")
    truncated: bool = Field(description="Whether outputs were cut or left out.")
    state_lost: bool = Field(
        description="Whether the variables of earlier runs are gone because the kernel ended during or before this run."
    )
    cause: str | None = Field(
        description="Why the state was lost: `oom`, `killed`, `exited`, `stuck` (it did not react to the interrupt) or "
        "`restarted`; null if it was not."
    )
    duration_ms: float


class RunResult(RunOutcome):
    """How a run ended, and its outputs."""

    model_config = ConfigDict(title="RunAnswer")

    outputs: list[RunOutput] = Field(description="In the order in which they came; text that follows text is joined.")
