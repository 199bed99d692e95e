"""ServiceConfig: what to consolidate with, parsed from one object. Pure.

The object is a ConsolidationSettings, a SummariserSettings, or a mapping whose names may be written like `idleMinutes`
or `idle_minutes`. Times of a mapping are in minutes and hours, as their names say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Self, cast, get_args

from memo.consolidation.policy import Policy
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.summarisers import SummariserSettings
from memo.errors import InvalidContent

Kind = Literal["embedded", "openai", "anthropic", "command"]
_KINDS = get_args(Kind)
_TIMES = ("idle_minutes", "scan_interval_minutes", "min_interval_hours", "min_changed_sessions")
_MODEL = ("provider", "model_id", "base_url", "key_file", "api_key")
_FIRST_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    settings: ConsolidationSettings = field(default_factory=ConsolidationSettings)
    summariser: SummariserSettings = field(default_factory=SummariserSettings)
    enabled: bool = True
    """Whether `start` consolidates in the background."""

    @classmethod
    def parse(cls, config: object) -> Self:
        if config is None:
            return cls()
        if isinstance(config, ConsolidationSettings):
            return cls(settings=config)
        if isinstance(config, SummariserSettings):
            return cls(summariser=config)
        if not isinstance(config, Mapping):
            raise InvalidContent("cannot consolidate: the config is neither settings nor an object")
        given = {_FIRST_CAPITAL.sub("_", str(name)).lower(): value for name, value in config.items()}
        unknown = sorted(set(given) - {"enabled", *_TIMES, *_MODEL})
        if unknown:
            raise InvalidContent(f"cannot consolidate: the config has an unknown name: {unknown[0]}")
        return cls(_settings(given), _summariser(given), given.get("enabled") is not False)


def _settings(given: Mapping[str, Any]) -> ConsolidationSettings:
    times = {name: _number(given, name) for name in _TIMES if given.get(name) is not None}
    default = Policy()
    policy = Policy(
        timedelta(minutes=times["idle_minutes"]) if "idle_minutes" in times else default.idle,
        timedelta(hours=times["min_interval_hours"]) if "min_interval_hours" in times else default.age,
        int(times.get("min_changed_sessions", default.sessions)),
    )
    minutes = times.get("scan_interval_minutes")
    return ConsolidationSettings(policy) if minutes is None else ConsolidationSettings(policy, scan_s=60 * minutes)


def _number(given: Mapping[str, Any], name: str) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidContent(f"cannot consolidate: {name} must be a number of at least 0")
    return float(value)


def _summariser(given: Mapping[str, Any]) -> SummariserSettings:
    kind = given.get("provider") or "embedded"
    if kind not in _KINDS:
        raise InvalidContent(f"cannot consolidate: there is no provider {kind}; choose one of {', '.join(_KINDS)}")
    return SummariserSettings(
        kind=cast(Kind, kind),
        model=given.get("model_id") or "",
        base_url=given.get("base_url") or "",
        key_file=given.get("key_file"),
        key=given.get("api_key") or "",
    )
