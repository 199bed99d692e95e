"""TextRules: what the texts of events may contain. Commands and output are bounded, and secrets in them replaced.

Rules find secrets by their form, so a secret in another form stays; values that the daemon knows are always replaced.
A rule's expression only runs on a text that contains one of its words, because most texts contain none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sandboxd.events import Excerpt

MAX_COMMAND_CHARS: Final = 2000
REDACTED: Final = "[redacted]"
_MARGIN_CHARS: Final = 4096
"""How much beyond its bound a text is searched, so that a secret at the cut is found whole."""


_FIRST_WORD: Final = re.compile(r"\A\S*")
_LAST_WORD: Final = re.compile(r"(?<!\S)\S*\Z")


@dataclass(frozen=True, slots=True)
class _TextRule:
    """`words` are lower-case texts of which one is in everything that the pattern matches; none means: always search.

    The group `secret`, or without one the whole match, is replaced.
    """

    words: tuple[str, ...]
    pattern: re.Pattern[str]


_VALUE: Final = r"""(?P<secret>"[^"\n]*"?|'[^'\n]*'?|[^\s"'&;|]+)"""
_NAMES: Final = r"(?:token(?!s|iz)|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|private[_-]?key)"


def _rule(words: str, pattern: str, *, flags: re.RegexFlag = re.IGNORECASE) -> _TextRule:
    return _TextRule(tuple(words.split()), re.compile(pattern, flags))


# A match never begins with a repetition, and no two repetitions follow each other, so that a search takes a time in
# proportion to its text: an agent chooses it, and the event loop waits.
_DEFAULT: Final = (
    # Authorization: Bearer x, and other headers that carry a key
    _rule(
        "authorization api-key auth-token private-token cookie",
        r"(?:authorization|api-key|auth-token|private-token|cookie)"
        r"""["']?\s*[:=]\s*["']?(?P<secret>[^"'\r\n]+)""",
    ),
    # TOKEN=x, MY_SECRET_KEY: x, "password": "x"
    _rule("token secret passw passphrase key", rf"""{_NAMES}[A-Z0-9_]{{0,40}}["']?\s*(?:=|:(?!//))\s*{_VALUE}"""),
    # --password x; with = it is an assignment
    _rule("--", rf"(?<=-){_NAMES}\s+(?!-){_VALUE}"),
    # curl -u user:password
    _rule("-u --user", r"""(?:^|\s)(?:-u|--user)(?:\s+|=)?["']?[^\s:"']+:(?P<secret>[^\s"']+)"""),
    _rule("sshpass", rf"\bsshpass\s+-p\s*{_VALUE}"),
    # scheme://user:password@host
    _rule("://", r"://[^\s/:@\"']*:(?P<secret>[^\s/\"']+)@"),
    # tokens to which their issuer gives a prefix
    _rule(
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox xapp- sk- sk_ rk_ akia asia npm_ pypi- hf_ aiza ya29. dop_v1_ "
        "eyj",
        r"\b(?:gh[opusr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[abps]-[\w-]{8,}|xapp-[\w-]{8,}"
        r"|[sr]k[-_](?:live|test|ant|proj|svcacct|or)[-_][\w-]{8,}|sk-[A-Za-z0-9]{20,}|A[KS]IA[A-Z0-9]{12,}"
        r"|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|AIza[\w-]{20,}|ya29\.[\w-]{8,}"
        r"|dop_v1_[a-f0-9]{16,}|(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?)",
        flags=re.NOFLAG,
    ),
    _rule(
        "-----begin",
        r"-----begin [a-z0-9 ]{0,40}private key-----(?P<secret>[\s\S]*?)"
        r"(?:-----end [a-z0-9 ]{0,40}private key-----|\Z)",
    ),
)


class TextRules:
    """`more` are further regular expressions. `known` returns the values that must never appear."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._rules = (*_DEFAULT, *(_TextRule((), re.compile(pattern)) for pattern in more))
        self._known: tuple[str, ...] = ()

    def hide(self, values: Iterable[str]) -> None:
        """Replace these values too from now on, wherever they appear."""
        found = {*self._known, *(value for value in values if value)}
        if len(found) == len(self._known):
            return
        self._known = tuple(sorted(found, key=len, reverse=True))  # a value within a longer one is replaced last

    def command(self, command: str | Sequence[str]) -> str:
        """Return the command as one text: bounded, and without secrets."""
        if not isinstance(command, str):
            command = _joined(command)
        return self._bounded(command, MAX_COMMAND_CHARS)

    def output(self, output: Excerpt) -> str:
        """Return the first and last part of an output as text, without secrets.

        Words at the cut are left out, because they may be a part of a secret.
        """
        if not output.left_out:
            return self.clean((output.head + output.tail).decode("utf-8", "replace"))
        head, tail = output.head.decode("utf-8", "replace"), output.tail.decode("utf-8", "replace")
        head, tail = _LAST_WORD.sub("", head), _FIRST_WORD.sub("", tail)
        return f"{self.clean(head)}\n[{output.left_out} bytes left out]\n{self.clean(tail)}"

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        text = self.hidden(text)
        lowered = text.lower()
        for rule in self._rules:
            if not rule.words or any(word in lowered for word in rule.words):
                text = rule.pattern.sub(_replaced, text)
        return text

    def hidden(self, text: str) -> str:
        """Return the text without the values that are known to be secret."""
        for value in self._known:
            if value in text:
                text = text.replace(value, REDACTED)
        return text

    def _bounded(self, text: str, most: int) -> str:
        searched = text[: most + _MARGIN_CHARS]
        cleaned = self.clean(searched)
        if len(searched) == len(text) and len(cleaned) <= most:
            return cleaned
        # A secret may be cut where the searched part ends, so the last word of that is never shown.
        shown = cleaned[:most] if len(cleaned) > most else cleaned.rpartition(" ")[0]
        return f"{shown}…"


def _joined(words: Sequence[str]) -> str:
    """Return the words of a command that fit. They are for reading: nothing is quoted."""
    parts: list[str] = []
    room = MAX_COMMAND_CHARS + _MARGIN_CHARS
    for word in words:
        if room <= 0:
            break
        parts.append(word[: room + 1])
        room -= len(word) + 1
    return " ".join(parts)


def _replaced(match: re.Match[str]) -> str:
    if "secret" not in match.re.groupindex or match["secret"] is None:
        return REDACTED
    start, end = (place - match.start() for place in match.span("secret"))
    return f"{match[0][:start]}{REDACTED}{match[0][end:]}"
