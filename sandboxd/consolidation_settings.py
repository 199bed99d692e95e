"""ConsolidationOptions: the settings `SANDBOXD_CONSOLIDATION__<NAME>`, or the table `[consolidation]` of the file.

It is a validated value that converts to the library's own settings. It does not read the key file and starts nothing.
"""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

if TYPE_CHECKING:
    from memo.consolidation import ConsolidationSettings, SummariserSettings

DAY_S = 86_400


class ConsolidationOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    """Whether the daemon consolidates users in the background. Runs on demand work either way."""
    summariser: Literal["embedded", "openai", "anthropic", "command"] = "embedded"
    """What summarises sessions; `embedded` needs no model."""
    model: str = ""
    """The model of an `openai` or `anthropic` summariser, which require it."""
    base_url: str = ""
    """The endpoint, if it is not the summariser's usual one."""
    key_file: Path | None = None
    """The file with the API key."""
    key_variable: str = ""
    """The environment variable with the API key, without a key file; the summariser's usual one by default."""
    command: str | tuple[str, ...] = ()
    """The program of a command summariser and its arguments, as a list or one shell-quoted line."""
    command_user: str | None = None
    """The user to run the command as: by default `nobody` if the daemon is root, else only the daemon's own user."""
    summariser_timeout_s: float = Field(default=120, gt=0, le=DAY_S)
    """The deadline of one call to the summariser, in seconds."""
    strict: bool = True
    """Whether the endpoint supports structured output with a JSON schema."""
    idle_s: float = Field(default=600, ge=0)
    """How long, in seconds, a user must be idle before a run."""
    interval_s: float = Field(default=DAY_S, ge=0)
    """The age, in seconds, at which a profile is updated if anything changed."""
    sessions: int = Field(default=5, ge=1)
    """A profile is updated sooner after this many changed sessions."""
    scan_s: float = Field(default=60, gt=0, le=DAY_S)
    """The time between two scans for users that are due, in seconds."""
    lease_s: float = Field(default=60, gt=0, le=DAY_S)
    """How long, in seconds, a user's lease lasts unless it is renewed."""
    concurrency: int = Field(default=4, ge=1, le=64)
    """How many users are consolidated concurrently in the background, and as many again on demand."""
    run_timeout_s: float = Field(default=1800, gt=0, le=DAY_S)
    """The deadline of one run, in seconds."""
    run_calls: int | None = Field(default=100, ge=1)
    """The most calls to the summariser in one run."""
    run_tokens: int | None = Field(default=1_000_000, ge=1)
    """The most tokens that the summariser uses in one run, approximately; the next run continues from there."""
    scan_calls: int | None = Field(default=None, ge=1)
    """The most calls to the summariser in one scan, over all users; unlimited by default."""
    scan_tokens: int | None = Field(default=None, ge=1)
    """The most tokens that the summariser uses in one scan, over all users; unlimited by default."""
    retry_s: float = Field(default=60, gt=0, le=DAY_S)
    """The pause after a first failure, in seconds. It doubles with each further failure."""
    retry_longest_s: float = Field(default=21_600, gt=0)
    """The longest pause after failures, in seconds."""

    @field_validator("command")
    @classmethod
    def _words(cls, command: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(shlex.split(command)) if isinstance(command, str) else command

    @field_validator("key_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path.expanduser().absolute() if path else None

    @model_validator(mode="after")
    def _a_summariser_needs_its_parts(self) -> ConsolidationOptions:
        if self.summariser in ("openai", "anthropic") and not self.model:
            raise ValueError(f"cannot summarise with {self.summariser} without a model; set consolidation.model")
        if self.summariser == "command" and not self.command:
            raise ValueError("cannot summarise with a command: none is set; set consolidation.command")
        return self

    def service_settings(self) -> ConsolidationSettings:
        from memo.consolidation import Backoff, ConsolidationSettings, Policy

        backoff = Backoff(timedelta(seconds=self.retry_s), timedelta(seconds=self.retry_longest_s))
        policy = Policy(timedelta(seconds=self.idle_s), timedelta(seconds=self.interval_s), self.sessions, backoff)
        return ConsolidationSettings(
            policy,
            scan_s=self.scan_s,
            lease_s=self.lease_s,
            run_timeout_s=self.run_timeout_s,
            concurrency=self.concurrency,
            run_calls=self.run_calls,
            run_tokens=self.run_tokens,
            scan_calls=self.scan_calls,
            scan_tokens=self.scan_tokens,
        )

    def summariser_settings(self) -> SummariserSettings:
        from memo.consolidation import SummariserSettings

        return SummariserSettings(
            kind=self.summariser,
            model=self.model,
            base_url=self.base_url,
            key_file=self.key_file,
            key_variable=self.key_variable,
            command=tuple(self.command),
            user=self.command_user,
            timeout_s=self.summariser_timeout_s,
            strict=self.strict,
        )
