"""What can be set about consolidation, with its defaults. A value; it decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from memo.consolidation.merging import MergeLimits
from memo.consolidation.policy import Policy
from memo.consolidation.transcripts import TranscriptLimits
from memo.errors import InvalidContent


@dataclass(frozen=True, slots=True)
class ConsolidationSettings:
    policy: Policy = field(default_factory=Policy)
    scan_s: float = 60.0
    lease_s: float = 60.0
    run_timeout_s: float = 1800.0
    concurrency: int = 4
    """Users under way at once in this process."""
    run_calls: int | None = 100
    run_tokens: int | None = 1_000_000
    """What one run of one user may spend; it goes on where it stopped."""
    scan_calls: int | None = None
    scan_tokens: int | None = None
    """What all users that one scan found may spend together."""
    sessions: int = 500
    """The newest sessions that a profile is made of; what older ones gave stays."""
    failures_in_a_row: int = 3
    """After so many failed sessions a summariser is taken to be out of order, and the user is left alone."""
    write_tries: int = 50
    merge: MergeLimits = field(default_factory=MergeLimits)
    transcripts: TranscriptLimits = field(default_factory=TranscriptLimits)

    def __post_init__(self) -> None:
        for name in (
            "scan_s",
            "lease_s",
            "run_timeout_s",
            "concurrency",
            "sessions",
            "failures_in_a_row",
            "write_tries",
        ):
            if not getattr(self, name) > 0:
                raise InvalidContent(f"cannot consolidate: {name} must be more than 0")
