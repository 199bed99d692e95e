"""SummariserSettings: which summariser to use, and `make_summariser`, which makes it.

Model and command summarisers are imported only when chosen: the default needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memo.consolidation.summarisers.embedded_summariser import EmbeddedSummariser
from memo.consolidation.summarisers.summariser import Summariser
from memo.errors import InvalidContent


@dataclass(frozen=True, slots=True)
class SummariserSettings:
    """`key` is the key itself; `key_file` takes precedence over `key_variable`, an environment variable whose default
    depends on the kind."""

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
    """Environment variables for a command, in addition to PATH and LANG."""
    key: str = field(default="", repr=False)


def make_summariser(settings: SummariserSettings | None = None) -> Summariser:
    settings = settings or SummariserSettings()
    if settings.kind == "embedded":
        return EmbeddedSummariser()
    if settings.kind == "command":
        from memo.consolidation.summarisers.command_summariser import CommandOptions, CommandSummariser

        environment = CommandOptions().environment | settings.environment
        return CommandSummariser(settings.command, CommandOptions(settings.user, settings.timeout_s, environment))
    if not settings.model:
        raise InvalidContent(f"cannot summarise with {settings.kind}: name a model")
    from memo.consolidation.summarisers.endpoint import ApiKey, EndpointOptions
    from memo.consolidation.summarisers.model_summariser import (
        ANTHROPIC_KEY_VARIABLE,
        ANTHROPIC_URL,
        OPENAI_KEY_VARIABLE,
        OPENAI_URL,
        AnthropicSummariser,
        OpenAISummariser,
    )

    options = EndpointOptions(timeout_s=settings.timeout_s)
    given = ApiKey(settings.key) if settings.key else None
    if settings.kind == "openai":
        key = given or ApiKey.load(file=settings.key_file, variable=settings.key_variable or OPENAI_KEY_VARIABLE)
        base_url = settings.base_url or OPENAI_URL
        return OpenAISummariser(settings.model, base_url=base_url, key=key, strict=settings.strict, options=options)
    key = given or ApiKey.load(file=settings.key_file, variable=settings.key_variable or ANTHROPIC_KEY_VARIABLE)
    base_url = settings.base_url or ANTHROPIC_URL
    return AnthropicSummariser(settings.model, base_url=base_url, key=key, options=options)
