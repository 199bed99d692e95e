"""Redactor: replaces secrets in a stream of bytes by as many mask characters, so that lengths stay the same.

It finds the forms it is given and no other: a host that sends a secret reversed or in hexadecimal is not caught. What
it holds back does not depend on the secret: a client that sees which bytes come late learns nothing from that.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASKS = b"*#.-_=+~xX0\t"
"""The first that no secret contains; no secret contains a tab, because control characters are refused."""
_LINE_BREAK = ord("\n")


class Redactor:
    """Redact one stream. `forms` are the byte strings that must not pass."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        given = sorted({form for form in forms if form}, key=len)
        # a form within another form is found there too, and without the longer one no two matches begin together
        self._forms = [form for i, form in enumerate(given) if not any(short in form for short in given[:i])]
        used = set(b"".join(self._forms))
        # with a character of a secret as the mask, masked bytes and their neighbours could spell the secret
        self._mask = next(bytes([mask]) for mask in _MASKS if mask not in used or mask == _MASKS[-1])
        self._longest = max(map(len, self._forms), default=0)
        self._is_within_lines = _LINE_BREAK not in used
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the next bytes that can be passed on, which may be none. A line that is complete always can."""
        text = self._held + chunk if self._held else chunk
        clean, matched_until = self._masked(text)
        # Holding back only what begins a secret would show a client how much of it it has guessed.
        keep_from = min(len(text), max(matched_until, len(text) - self._longest + 1))
        if self._is_within_lines:
            keep_from = max(keep_from, text.rfind(b"\n") + 1)
        self._held = text[keep_from:]
        return clean if keep_from == len(text) else clean[:keep_from]

    def finish(self) -> bytes:
        """Return what was held back. It is less than a secret."""
        held, self._held = self._held, b""
        return held

    def redact(self, text: bytes) -> bytes:
        """Return a complete text without the secrets."""
        return self._masked(text)[0]

    def _masked(self, text: bytes) -> tuple[bytes, int]:
        """Return the text with every complete match masked, and where the last match ends."""
        found = {form: place for form in self._forms if (place := text.find(form)) >= 0}
        if not found:
            return text, 0
        clean, end = bytearray(text), 0
        while found:
            form = min(found, key=found.__getitem__)
            start = found[form]
            if start >= end:
                end = start + len(form)
                clean[start:end] = self._mask * len(form)
            found[form] = text.find(form, end)
            if found[form] < 0:
                del found[form]
        return bytes(clean), end
