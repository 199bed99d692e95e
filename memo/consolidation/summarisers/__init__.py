"""Summarisers: what turns conversations into facts, and facts into a profile. `make_summariser` makes one by settings.

The embedded one is the default and needs nothing. Those that ask a model or a command are imported only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memo.consolidation.summarisers.embedded import EmbeddedSummariser
from memo.consolidation.summarisers.protocol import (
    BadAnswer,
    Fact,
    ProfileRequest,
    SessionDraft,
    SessionSummary,
    Summariser,
    SummariserError,
    SummariserUnavailable,
)
from memo.errors import InvalidContent

__all__ = [
    "BadAnswer",
    "EmbeddedSummariser",
    "Fact",
    "ProfileRequest",
    "SessionDraft",
    "SessionSummary",
    "Summariser",
    "SummariserError",
    "SummariserSettings",
    "SummariserUnavailable",
    "make_summariser",
]


@dataclass(frozen=True, slots=True)
class SummariserSettings:
    """`key_file` wins over `key_variable`, the name of an environment variable; each kind has a usual one."""

    kind: Literal["embedded", "openai", "anthropic", "command"] = "embedded"
    model: str = ""
    base_url: str = ""
    key_file: Path | None = None
    key_variable: str = ""
    command: tuple[str, ...] = ()
    user: str | int | None = None
    timeout_s: float = 120.0
    strict: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    """What a command finds in its environment beside a PATH."""


def make_summariser(settings: SummariserSettings | None = None) -> Summariser:
    settings = settings or SummariserSettings()
    if settings.kind == "embedded":
        return EmbeddedSummariser()
    if settings.kind == "command":
        from memo.consolidation.summarisers.command import CommandOptions, CommandSummariser

        environment = CommandOptions().environment | settings.environment
        return CommandSummariser(settings.command, CommandOptions(settings.user, settings.timeout_s, environment))
    if not settings.model:
        raise InvalidContent(f"cannot summarise with {settings.kind}: name a model")
    from memo.consolidation.summarisers import anthropic, openai
    from memo.consolidation.summarisers.endpoint import ApiKey, EndpointOptions

    usual = openai if settings.kind == "openai" else anthropic
    key = ApiKey.load(file=settings.key_file, variable=settings.key_variable or usual.KEY_VARIABLE)
    options = EndpointOptions(timeout_s=settings.timeout_s)
    base_url = settings.base_url or usual.DEFAULT_URL
    if settings.kind == "openai":
        return openai.OpenAISummariser(
            settings.model, base_url=base_url, key=key, strict=settings.strict, options=options
        )
    return anthropic.AnthropicSummariser(settings.model, base_url=base_url, key=key, options=options)
