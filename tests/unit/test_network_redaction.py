"""Redactor: no secret passes, however the stream is cut, and nothing else changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.network.redaction import Redactor

SECRET = b"ghp_0123456789abcdef"

# few characters, so that parts of secrets, overlaps and repetitions are common
words = st.lists(st.sampled_from([b"a", b"b", b"*", b"#", b"/"]), min_size=1, max_size=6).map(b"".join)


def streamed(redactor: Redactor, chunks: list[bytes]) -> bytes:
    return b"".join([*(redactor.feed(chunk) for chunk in chunks), redactor.finish()])


@given(forms=st.lists(words, min_size=1, max_size=4), chunks=st.lists(st.lists(words, max_size=4).map(b"".join)))
def test_a_stream_cut_anywhere_is_redacted_as_the_whole(forms: list[bytes], chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    redacted = streamed(Redactor(forms), chunks)
    assert redacted == Redactor(forms).redact(whole)
    assert len(redacted) == len(whole)
    assert not any(form in redacted for form in forms)


@given(
    secret=st.binary(min_size=8, max_size=40),
    around=st.lists(st.binary(max_size=30), min_size=1, max_size=5),
    size=st.integers(min_value=1, max_value=50),
)
def test_an_echoed_secret_is_masked_and_its_surroundings_are_kept(
    secret: bytes, around: list[bytes], size: int
) -> None:
    text = secret.join(around)
    redacted = streamed(Redactor([secret]), [text[i : i + size] for i in range(0, len(text), size)])
    assert secret not in redacted
    assert len(redacted) == len(text)
    if not any(secret in part for part in around) and text.count(secret) == len(around) - 1:
        assert redacted.startswith(around[0][: max(0, text.find(secret))])


def test_a_complete_line_is_passed_on_at_once() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"data: one\n\n") == b"data: one\n\n"
    assert redactor.feed(b"data: ghp_01") == b""
    assert redactor.feed(b"zz\n") == b"data: ghp_01zz\n"
    assert redactor.finish() == b""


@given(guess=st.text("ghp_0123456789abcdef", min_size=1, max_size=len(SECRET) - 1).map(str.encode))
def test_what_is_held_back_does_not_depend_on_the_secret(guess: bytes) -> None:
    """Otherwise a client that has its guesses sent back could find the secret piece by piece."""
    line = b"x" * 100 + guess
    for prefix in (SECRET[: len(guess)], guess):
        assert len(Redactor([SECRET]).feed(b"x" * 100 + prefix)) == len(line) - len(SECRET) + 1


def test_a_secret_with_a_line_break_is_held_back_too() -> None:
    redactor = Redactor([b"two\nlines"])
    assert redactor.feed(b"a line\n and two\n") + redactor.feed(b"lines") + redactor.finish() == (
        b"a line\n and *********"
    )


def test_a_secret_that_arrives_byte_by_byte_never_passes() -> None:
    redactor = Redactor([SECRET])
    text = b"x" + SECRET + b"y"
    passed = b"".join(redactor.feed(bytes([byte])) for byte in text) + redactor.finish()
    assert passed == b"x" + b"*" * len(SECRET) + b"y"


def test_the_start_of_a_secret_at_the_end_of_a_stream_is_passed_on() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"ghp_0123") == b""
    assert redactor.finish() == b"ghp_0123"


def test_a_mask_never_completes_a_secret_that_contains_the_mask_character() -> None:
    assert b"*a*" not in Redactor([b"*a*"]).redact(b"*a*a*a*")


def test_a_redactor_without_secrets_changes_nothing() -> None:
    redactor = Redactor([])
    assert redactor.feed(b"anything") == b"anything"
    assert redactor.finish() == b""
