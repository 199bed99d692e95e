"""Frames, proofs and patterns: the pure parts of the runner and its client."""

from __future__ import annotations

import pytest

from sandboxd.errors import InvalidRequest, NotFound, SandboxError, ToolTimeout
from sandboxd.runner import protocol
from sandboxd.runner.calls import CommandResult, Exec, Grep
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.failure import Failure
from sandboxd.runner.inside.find import _split_absolute
from sandboxd.runner.inside.greeting import Greeting
from sandboxd.runner.inside.patterns import Pattern, compile_segment, expand_braces, matches_segment


def trusted() -> wire.FrameReader:
    frames = wire.FrameReader()
    frames.trust()
    return frames


def test_a_frame_survives_a_round_trip() -> None:
    packed = wire.pack(wire.CALL, 7, {"a": "ü"}, b"data")
    ((kind, call, head, data),) = trusted().feed(packed)
    assert (kind, call, wire.read_head(head), data) == (wire.CALL, 7, {"a": "ü"}, b"data")


def test_only_greetings_are_accepted_before_the_greeting_is_complete() -> None:
    for frame in (wire.pack(wire.CALL, 1, {}), wire.pack(wire.PROOF, 0, None, b"x" * 5000)):
        with pytest.raises(wire.WireError):
            list(wire.FrameReader().feed(frame))


def test_a_frame_too_large_is_refused_by_its_header_alone() -> None:
    for head_size, data_size in ((wire.MAX_HEAD_BYTES + 1, 0), (0, wire.MAX_DATA_BYTES + 1)):
        with pytest.raises(wire.WireError):
            list(trusted().feed(wire.HEADER.pack(wire.RESULT, 1, head_size, data_size)))


def test_a_proof_is_valid_for_one_side_one_version_and_one_challenge_only() -> None:
    given = (b"secret", "runner", 1, b"c" * 32, b"n" * 32)
    proof = wire.prove(*given)
    assert wire.is_proof(proof, wire.prove(*given))
    for other in (
        (b"Secret", "runner", 1, b"c" * 32, b"n" * 32),
        (b"secret", "daemon", 1, b"c" * 32, b"n" * 32),
        (b"secret", "runner", 2, b"c" * 32, b"n" * 32),
        (b"secret", "runner", 1, b"d" * 32, b"n" * 32),
        (b"secret", "runner", 1, b"c" * 32, b"m" * 32),
    ):
        assert not wire.is_proof(proof, wire.prove(*other))


def test_a_runner_refuses_a_daemon_that_does_not_know_the_secret() -> None:
    greeting = Greeting(b"secret")
    greeting.take(wire.CHALLENGE, b"c" * 32)
    with pytest.raises(wire.WireError):
        greeting.take(wire.ACCEPT, b"x" * 32)
    assert not greeting.done
    with pytest.raises(wire.WireError):
        Greeting(b"secret").take(wire.ACCEPT, b"x" * 32)


def test_a_runner_s_error_becomes_a_daemon_error() -> None:
    assert type(protocol.read_error({"code": "NotFound", "message": "cannot find x"})) is NotFound
    unknown = protocol.read_error({"code": "SystemExit", "message": "boo\x07"})
    assert type(unknown) is SandboxError
    assert str(unknown) == "cannot do this: boo?"


@pytest.mark.parametrize("head", [{}, {"pid": True}, {"pid": -1}, {"pid": 1.5}, {"pid": 2**63}, {"pid": "1"}])
def test_a_field_of_the_wrong_type_is_a_wire_error(head: dict[str, object]) -> None:
    with pytest.raises(wire.WireError):
        protocol.integer(head, "pid")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, True, None, "1"])
def test_an_invalid_number_is_a_wire_error(value: object) -> None:
    with pytest.raises(wire.WireError):
        protocol.number({"ms": value}, "ms")


def test_a_command_is_checked_before_it_is_sent() -> None:
    for call in (
        Exec(()),
        Exec(("",)),
        Exec("true", timeout_s=0),
        Exec("true", timeout_s=float("nan")),
        Exec("true", timeout_s=3601),
        Exec("true", max_output_bytes=-1),
        Exec("true", max_output_bytes=16_777_217),
        Exec("true", stdin=b"x" * 16_777_217),
        Exec("true", cwd="relative"),
        Exec("a\0b"),
        Exec(("a", "\udc80")),
        Exec("true", env={"": "x"}),
        Exec("true", env={"A": "\0"}),
    ):
        with pytest.raises(InvalidRequest, match=r"^cannot"):
            protocol.exec_head(call)


def grep_result(**fields: object) -> CommandResult:
    given = {"exit_code": 1, "stdout": b"", "stderr": b"", "timed_out": False, "truncated": False, "duration_ms": 1.0}
    return CommandResult(**{**given, **fields})


def test_the_exit_code_of_a_search_is_interpreted_as_ripgrep_s() -> None:
    call = Grep("x")
    assert not protocol.read_grep(call, grep_result()).matched
    assert protocol.read_grep(call, grep_result(exit_code=2, stdout=b"found\n")).matched
    with pytest.raises(InvalidRequest, match="regex parse error"):
        protocol.read_grep(call, grep_result(exit_code=2, stderr=b"\nregex parse error:\n  ("))
    with pytest.raises(ToolTimeout):
        protocol.read_grep(call, grep_result(exit_code=None, timed_out=True))
    with pytest.raises(SandboxError):
        protocol.read_grep(call, grep_result(exit_code=137))
    with pytest.raises(SandboxError, match="memory"):
        protocol.read_grep(call, grep_result(exit_code=137, limits_hit=("memory",)))


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "a.pyc", False),
        ("a*b*c", "aXbYbZc", True),
        ("a*b*c", "acb", False),
        ("?", "", False),
        ("?", "ü", True),
        ("[a-c]", "b", True),
        ("[!a-c]", "b", False),
        ("[]]", "]", True),
        ("[", "[", True),
        ("[z-a]", "m", False),
        ("", "", True),
        ("*", "", True),
    ],
)
def test_a_segment_matches_its_pattern(pattern: str, name: str, expected: bool) -> None:
    assert matches_segment(compile_segment(pattern), name) is expected


def matches(pattern: str, path: str) -> bool:
    compiled = Pattern(pattern)
    states, is_match = compiled.start, False
    for name in path.split("/"):
        states, is_match = compiled.step(states, name)
    return is_match


def test_two_stars_match_any_number_of_directories() -> None:
    for path in ("x.py", "a/x.py", "a/b/c/x.py"):
        assert matches("**/x.py", path)
        assert matches("**/**/*.py", path)
        assert matches("**", path)
    assert matches("a/**/x", "a/x")
    assert not matches("a/**/x", "b/a/x")
    assert matches("a/**", "a/b/c")
    assert not matches("*/x", "a/b/x")


def test_braces_match_each_alternative_within_a_bound() -> None:
    assert sorted(expand_braces("{a,b{c,d}}.{x,y}")) == ["a.x", "a.y", "bc.x", "bc.y", "bd.x", "bd.y"]
    for pattern in ("{a,b}" * 10, "{a", "x" * 2000):
        with pytest.raises(Failure):
            expand_braces(pattern)


def test_an_absolute_pattern_starts_at_its_plain_part() -> None:
    assert _split_absolute("/workspace/a/*.py") == ("/workspace/a", "*.py")
    assert _split_absolute("/workspace/a.py") == ("/workspace", "a.py")
    assert _split_absolute("/**") == ("/", "**")
