"""A command: its arguments, environment and bounds; the request that runs one, and its result.

The output of a command is bytes. In JSON it is text or base64, and `encoding` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from sandboxd.models.paths import normalise_path
from sandboxd.models.wire import (
    AnswerModel,
    BodyModel,
    Encoding,
    OutputEncoding,
    decode,
    encode,
    encoding_is_optional,
    is_text,
)
from sandboxd.runner.inside.container_paths import WORKSPACE

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_MAX_TIMEOUT_S = 3600.0
"""The longest timeout of a command unless the daemon's settings raise it."""
MAX_TIMEOUT_S = 2_592_000.0
"""The longest timeout that the settings allow: 30 days."""
DEFAULT_OUTPUT_BYTES = 1_048_576
MAX_OUTPUT_BYTES = 16_777_216
MAX_STDIN_BYTES = 16_777_216
"""The bound of stdin that is given as bytes. A stream has none."""
MAX_ARGUMENT_BYTES = 131_071
"""The kernel refuses a longer argument or environment variable."""
MAX_STRINGS = 262_144
"""The most words of a command or variables of an environment: the kernel has no room for more pointers."""


def _argument(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise ValueError(
            f"must be at most {MAX_ARGUMENT_BYTES} bytes long, which is what the kernel takes for one argument or "
            "variable; pass more through stdin or a file"
        )
    return text


def check_names(env: dict[str, str]) -> dict[str, str]:
    """Refuse an environment with an invalid variable name."""
    for name in env:
        if not name or "=" in name:
            raise ValueError("must have names that are not empty and contain no `=`")
    return env


def _program(command: str | list[str]) -> str | list[str]:
    if not command or not command[0]:
        raise ValueError("must not be empty")
    return command


Argument = Annotated[str, AfterValidator(_argument)]
Directory = Annotated[str, AfterValidator(normalise_path)]
Environment = Annotated[dict[Argument, Argument], Field(max_length=MAX_STRINGS), AfterValidator(check_names)]
Command = Annotated[Argument | Annotated[list[Argument], Field(max_length=MAX_STRINGS)], AfterValidator(_program)]


class ExecBody(BodyModel):
    command: Command = Field(description="A string runs under bash, a list runs as it is.")
    cwd: Directory = WORKSPACE
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
    def _stdin_fits(self) -> Self:
        if self.stdin and len(self.stdin_bytes()) > MAX_STDIN_BYTES:
            raise ValueError(f"stdin must be at most {MAX_STDIN_BYTES} bytes long; stream it if it is longer")
        return self

    def stdin_bytes(self) -> bytes:
        encoding: Encoding = "base64" if self.encoding == "base64" else "text"
        return decode(self.stdin, encoding, "stdin") if self.stdin else b""


class ExecOutcome(AnswerModel):
    """How a command ended, without its output."""

    exit_code: int | None = Field(description="128 + n after signal n; null after a timeout.")
    timed_out: bool
    truncated: bool
    duration_ms: float
    limits_hit: tuple[str, ...] = Field(
        default=(),
        description="Limits that the command ran into. `memory` and `pids`: the kernel enforced them during the call. "
        "`workspace` and `tmp`: the command failed or timed out, and that filesystem has no room for more bytes or "
        "files; `workspace` also if it was killed because a file grew larger than the workspace may be.",
    )


class ExecResult(ExecOutcome):
    """How a command ended, and its output as text, in which bytes that are not UTF-8 are replaced."""

    model_config = ConfigDict(title="ExecAnswer", json_schema_extra=encoding_is_optional)

    stdout: str
    stderr: str
    encoding: Encoding = Field(default="text", description="The encoding of stdout and stderr; text if it is not sent.")
    _raw: tuple[bytes, bytes] | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _decoded(cls, fields: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        """Read base64 as well as text."""
        if not isinstance(fields, Mapping) or fields.get("encoding") != "base64":
            return build(fields)
        stdout, stderr = (decode(str(fields.get(name, "")), "base64", name) for name in ("stdout", "stderr"))
        texts = {"stdout": encode(stdout, "text"), "stderr": encode(stderr, "text")}
        result = build({**fields, **texts, "encoding": "text"})
        if not is_text(stdout, stderr):
            result._raw = (stdout, stderr)
        return result

    @property
    def raw(self) -> tuple[bytes, bytes] | None:
        """The bytes of stdout and stderr, if they are not UTF-8."""
        return self._raw

    @property
    def stdout_bytes(self) -> bytes:
        return self.stdout.encode() if self._raw is None else self._raw[0]

    @property
    def stderr_bytes(self) -> bytes:
        return self.stderr.encode() if self._raw is None else self._raw[1]


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """A piece of a running command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes
