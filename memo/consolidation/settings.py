"""ConsolidationSettings: the settings of the service, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from memo.consolidation.policy import Policy
from memo.consolidation.profile_merge import MergeLimits
from memo.consolidation.transcript import TranscriptLimits
from memo.errors import InvalidContent


@dataclass(frozen=True, slots=True)
class ConsolidationSettings:
    policy: Policy = field(default_factory=Policy)
    scan_s: float = 60.0
    lease_s: float = 60.0
    run_timeout_s: float = 1800.0
    concurrency: int = 4
    """Users consolidated at once in this process."""
    run_calls: int | None = 100
    run_tokens: int | None = 1_000_000
    """The budget of one run; a run that exhausts it continues at the next scan."""
    scan_calls: int | None = None
    scan_tokens: int | None = None
    """The budget shared by all users of one scan."""
    sessions: int = 500
    """How many of the newest sessions a run reads; bullets from older sessions are kept."""
    failures_in_a_row: int = 3
    """After this many consecutive failed sessions the run fails: the summariser is at fault, not the sessions."""
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
                raise InvalidContent(f"cannot consolidate: {name} must be greater than 0")
