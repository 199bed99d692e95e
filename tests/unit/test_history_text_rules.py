"""What the texts of events may contain: secrets are found in the forms that commands have, other text stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.events import EXCERPT_BYTES, Excerpt, OutputEnds
from sandboxd.history.text_rules import MAX_COMMAND_CHARS, TextRules

RULES = TextRules()
SECRET = "Zq8vN4xWk2Lp7RtYb3Hd"


@pytest.mark.parametrize(
    "command",
    [
        f"curl -H 'Authorization: Bearer {SECRET}' https://api.example.com",
        f'curl -H "authorization: token {SECRET}"',
        f"curl -H 'X-Api-Key: {SECRET}' x",
        f"curl --cookie 'a=b' -H 'Cookie: session={SECRET}'",
        f"curl -u ann:{SECRET} https://api.example.com",
        f"curl --user=ann:{SECRET} https://api.example.com",
        f"mysql --password {SECRET} -e 'select 1'",
        f"mysql --password={SECRET} -e 'select 1'",
        f"deploy --api-key {SECRET}",
        f"deploy --github-token='{SECRET}'",
        f"sshpass -p {SECRET} ssh host",
        f"export TOKEN={SECRET}; make",
        f"MY_SECRET_KEY={SECRET} make",
        f"AWS_SECRET_ACCESS_KEY='{SECRET}' aws s3 ls",
        f"PGPASSWORD={SECRET} psql",
        f'echo \'{{"password": "{SECRET}", "user": "ann"}}\'',
        f"db_password: {SECRET}",
        f"git clone https://ann:{SECRET}@github.com/x/y",
        f"psql postgresql://ann:{SECRET}@db/x",
        f"redis-cli -u redis://:{SECRET}@cache:6379",
        f"echo ghp_{SECRET}{SECRET}",
        f"echo github_pat_{SECRET}",
        f"echo glpat-{SECRET}",
        f"echo sk-{SECRET}{SECRET}",
        f"echo sk-ant-{SECRET}",
        f"echo xoxb-{SECRET}",
        f"echo eyJ{SECRET}.eyJ{SECRET}.{SECRET}",
        f"cat <<E\n-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----\nE",
    ],
)
def test_a_secret_in_a_usual_form_is_replaced(command: str) -> None:
    cleaned = RULES.command(command)
    assert SECRET not in cleaned
    assert "[redacted]" in cleaned
    assert cleaned.split()[0] == command.split()[0].partition("=")[0] or "[redacted]" in cleaned.split()[0]


def test_keys_of_a_cloud_are_replaced_whole() -> None:
    assert RULES.command("aws configure set key AKIAIOSFODNN7EXAMPLE") == "aws configure set key [redacted]"


@pytest.mark.parametrize(
    "command",
    [
        "ls -la /workspace",
        "python3 -m pytest -k 'tokens or passwords' tests",
        "git log --oneline -5",
        "echo max_tokens: 512",
        "grep -rn tokenizer src",
        "curl https://example.com:8080/path?a=b@c",
        "ssh-keygen -t ed25519 -f key",
        "echo a:b",
        "task-runner --ask disk_usage risk-free",
        "echo asiapacificregion akin",
    ],
)
def test_an_ordinary_command_stays_as_it_is(command: str) -> None:
    assert RULES.command(command) == command


def test_a_long_command_is_cut_and_a_secret_at_the_cut_is_not_shown_in_part() -> None:
    for before in range(MAX_COMMAND_CHARS - 40, MAX_COMMAND_CHARS + 10):
        shown = RULES.command(f"{'x' * (before - 1)} TOKEN={SECRET} {'y' * 9000}")
        assert len(shown) <= MAX_COMMAND_CHARS + 1
        assert SECRET[:4] not in shown


def test_a_command_of_many_words_costs_no_more_than_its_bound() -> None:
    shown = RULES.command(("echo", *["word"] * 200_000))
    assert shown.startswith("echo word word")
    assert len(shown) == MAX_COMMAND_CHARS + 1


@pytest.mark.parametrize(
    "text",
    [
        word * 20_000
        for word in ("a", "token", "--", "://:", " -u", "eyJ", "eyJ-", "-token", "=", "-----begin ", "key: ", "x:y@")
    ],
)
def test_no_text_makes_a_search_take_long(text: str) -> None:
    RULES.clean(text)  # quadratic time would run into the limit of the test
    RULES.clean(f"token={text}")
    RULES.clean(f"authorization {text}")


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_known_value_never_appears_whatever_is_around_it(before: str, after: str) -> None:
    rules = TextRules()
    rules.hide([SECRET, SECRET[:10]])
    shown = rules.command(f"{before}{SECRET}{after}")
    assert SECRET not in shown
    assert SECRET[:10] not in shown


@given(st.text(max_size=3000))
def test_an_event_never_holds_more_of_a_command_than_its_bound(command: str) -> None:
    assert len(RULES.command(command)) <= MAX_COMMAND_CHARS + 1


@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_the_ends_of_an_output_are_the_same_whole_or_in_pieces(pieces: list[bytes]) -> None:
    ends = OutputEnds()
    for piece in pieces:
        ends.add(piece)
    excerpt, whole = ends.excerpt(), b"".join(pieces)
    assert len(excerpt.head) + len(excerpt.tail) + excerpt.left_out == len(whole)
    assert len(excerpt.head) + len(excerpt.tail) <= EXCERPT_BYTES
    assert whole.startswith(excerpt.head)
    assert whole.endswith(excerpt.tail)
    if len(whole) <= EXCERPT_BYTES:
        assert excerpt.head + excerpt.tail == whole
        assert RULES.output(Excerpt.of(*pieces)) == RULES.output(excerpt)


def test_a_secret_at_the_cut_of_an_output_is_not_shown_in_part() -> None:
    for before in range(EXCERPT_BYTES // 2 - 30, EXCERPT_BYTES // 2 + 5):
        output = b"x" * (before - 1) + f" {SECRET} ".encode() + b"y " * 5000
        assert SECRET[:4] not in RULES.output(Excerpt.of(output)).replace(SECRET, "")
