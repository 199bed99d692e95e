"""Glob patterns: `**`, `*`, `?`, `[...]` and `{a,b}`, matched segment by segment. Pure.

The matcher backtracks at most to the last star, so its time is bounded by pattern length times name length. It never
uses regular expressions.
"""

from __future__ import annotations

from .failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    Token = str | tuple[bool, str] | None

MAX_PATTERN = 1_024
MAX_ALTERNATIVES = 64
STAR = None
ANY = (True, "")
"""A set is (negated, members): it matches the characters among its members or, if negated, all others."""


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns without braces that `pattern` stands for."""
    if len(pattern) > MAX_PATTERN:
        raise Failure(
            "InvalidRequest", f"cannot use this pattern: {len(pattern)} characters, and the limit is {MAX_PATTERN}"
        )
    todo, done = [pattern], []
    while todo:
        current = todo.pop()
        parts = _split_first_brace(current)
        if parts is None:
            done.append(current)
        else:
            before, alternatives, after = parts
            todo.extend(before + alternative + after for alternative in reversed(alternatives))
        if len(todo) + len(done) > MAX_ALTERNATIVES:
            raise Failure("InvalidRequest", f"cannot use this pattern: more than {MAX_ALTERNATIVES} alternatives")
    return done


def _split_first_brace(pattern: str) -> tuple[str, list[str], str] | None:
    start = pattern.find("{")
    if start < 0:
        return None
    depth = 0
    alternatives, piece = [], start + 1
    for position in range(start, len(pattern)):
        character = pattern[position]
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                alternatives.append(pattern[piece:position])
                return pattern[:start], alternatives, pattern[position + 1 :]
        elif character == "," and depth == 1:
            alternatives.append(pattern[piece:position])
            piece = position + 1
    raise Failure("InvalidRequest", "cannot use this pattern: a { without a matching }")


def compile_segment(segment: str) -> list[Token]:
    tokens: list[Token] = []
    position = 0
    while position < len(segment):
        character = segment[position]
        position += 1
        if character == "*":
            if not tokens or tokens[-1] is not STAR:
                tokens.append(STAR)
        elif character == "?":
            tokens.append(ANY)
        elif character == "[":
            end = segment.find("]", position + 1 + (segment[position : position + 1] in ("!", "^")))
            if end < 0:
                tokens.append("[")
            else:
                tokens.append(_compile_set(segment[position:end]))
                position = end + 1
        else:
            tokens.append(character)
    return tokens


def _compile_set(text: str) -> tuple[bool, str]:
    negated = text[:1] in ("!", "^")
    if negated:
        text = text[1:]
    members: list[str] = []
    position = 0
    while position < len(text):
        if text[position + 1 : position + 2] == "-" and position + 2 < len(text):
            first, last = ord(text[position]), ord(text[position + 2])
            members.extend(chr(code) for code in range(first, min(last, first + 512) + 1))
            position += 3
        else:
            members.append(text[position])
            position += 1
    return negated, "".join(members)


def matches_segment(tokens: list[Token], name: str) -> bool:
    token, position = 0, 0
    star, resume = -1, 0
    while position < len(name):
        if token < len(tokens) and tokens[token] is STAR:
            star, resume = token, position
            token += 1
        elif token < len(tokens) and _matches_one(tokens[token], name[position]):
            token += 1
            position += 1
        elif star >= 0:
            resume += 1
            token, position = star + 1, resume
        else:
            return False
    return all(rest is STAR for rest in tokens[token:])


def _matches_one(token: Token, character: str) -> bool:
    if isinstance(token, str):
        return token == character
    return token is not None and (character in token[1]) != token[0]


class Pattern:
    """A pattern over relative paths, followed directory by directory: a state is a set of segments still possible."""

    def __init__(self, text: str) -> None:
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Failure("InvalidRequest", "cannot use this pattern: it must not contain ..")
        self._segments = ["**" if part == "**" else compile_segment(part) for part in parts]
        self.start = self._reach({0})

    def _reach(self, states: set[int]) -> frozenset[int]:
        """Add the states in which `**` matches no directory at all."""
        reached = set(states)
        for state in sorted(states):
            while state < len(self._segments) and self._segments[state] == "**":
                state += 1
                reached.add(state)
        return frozenset(reached)

    def step(self, states: frozenset[int], name: str) -> tuple[frozenset[int], bool]:
        """Return the states inside the entry `name`, and whether the entry itself matches."""
        after = set()
        is_match = False
        last = len(self._segments) - 1
        for state in states:
            if state > last:
                continue
            segment = self._segments[state]
            if segment == "**":
                after.add(state)
                is_match = is_match or state == last
            elif isinstance(segment, list) and matches_segment(segment, name):
                after.add(state + 1)
                is_match = is_match or all(rest == "**" for rest in self._segments[state + 1 :])
        return self._reach(after), is_match
