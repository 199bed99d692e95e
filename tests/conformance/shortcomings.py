"""What an engine cannot do by design: the tests that fail for that reason, and the sentence for users.

The tests are strict expected failures: an engine that gains the feature fails the suite, so the table stays true.
`docs/how-to/engines.md` shows the same sentences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shortcoming:
    engine: str
    what: str
    tests: tuple[str, ...]


SHORTCOMINGS = (
    Shortcoming(
        "bubblewrap",
        "There are no runtimes to choose from, so gVisor is not available.",
        ("test_a_runtime_can_be_chosen_by_name",),
    ),
    Shortcoming(
        "podman",
        "The runtime is the same for all containers, and is set in Podman's own configuration.",
        ("test_a_runtime_can_be_chosen_by_name",),
    ),
    Shortcoming(
        "gvisor",
        "A sandbox that reaches its limit of processes dies, because gVisor's own threads count against it.",
        ("test_fork_bomb_stops_at_the_pid_limit",),
    ),
    Shortcoming(
        "gvisor",
        "The number of processes in its statistics includes gVisor's own threads.",
        ("test_stats_count_the_processes_of_the_container",),
    ),
    Shortcoming(
        "gvisor",
        "A command that uses up the memory ends the whole sandbox, not just itself.",
        ("test_memory_hog_in_a_child_ends_only_the_child",),
    ),
    Shortcoming(
        "gvisor",
        "Our list of allowed system calls is not applied; gVisor's own kernel answers them all.",
        ("test_the_system_call_filter_is_on",),
    ),
    Shortcoming(
        "gvisor",
        "The agent can kill the runner (PID 1), and its sandbox with it.",
        ("test_pid_1_survives_a_kill_from_inside",),
    ),
    Shortcoming(
        "gvisor",
        "`pidfd_open` does not exist.",
        ("test_a_process_can_be_referenced_by_a_descriptor",),
    ),
)
SHORTCOMINGS_OF_THE_FAKE = (
    Shortcoming(
        "fake",
        "There are no runtimes to choose from.",
        ("test_a_runtime_can_be_chosen_by_name",),
    ),
)
"""For tests only, so users do not read about them. It isolates nothing: see the mark `isolation`."""
ALL_SHORTCOMINGS = SHORTCOMINGS + SHORTCOMINGS_OF_THE_FAKE


def shortcoming_of(engine: str, test: str) -> Shortcoming | None:
    return next((found for found in ALL_SHORTCOMINGS if found.engine == engine and test in found.tests), None)
