"""Credentials: which requests may use one, how it is added, where its secret comes from, and that nothing shows it."""

from __future__ import annotations

import base64
import copy
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import CredentialUnavailable
from sandboxd.network.credentials import Credential, CredentialStore
from sandboxd.network.secret_source import MAX_SECRET_BYTES, Secret
from sandboxd.network_settings import CredentialOptions

pytestmark = pytest.mark.anyio

VALUE = "tok/en+of the=agent%"
SECRET = Secret(VALUE)


def credential(**options: Any) -> Credential:
    source = {} if options.keys() & {"variable", "file", "command"} else {"variable": "UNUSED"}
    return Credential("github", CredentialOptions(**{"host": "api.example.com", **source, **options}))


def store(**hosts: str) -> CredentialStore:
    return CredentialStore({name: CredentialOptions(host=host, variable="UNUSED") for name, host in hosts.items()})


def test_a_credential_is_found_by_its_host_and_port() -> None:
    credentials = store(one="api.example.com", below="*.example.org", address="192.0.2.7")

    def found(host: str, port: int = 443, names: tuple[str, ...] = ("one", "below", "address")) -> str | None:
        credential = credentials.find(names, host, port)
        return credential.name if credential else None

    assert found("api.example.com") == found("API.example.com.") == "one"
    assert found("a.example.org") == found("b.a.example.org") == "below"
    assert found("192.0.2.7") == "address"
    assert found("example.org") is None
    assert found("badexample.org") is None
    assert found(".example.org") is None
    assert found("api.example.com.evil.test") is None
    assert found("api.example.com", 8443) is None
    assert found("api.example.com", names=("below", "unknown")) is None


def test_a_credential_for_the_name_itself_goes_before_one_for_a_pattern() -> None:
    chosen = store(wide="*.example.com", exact="api.example.com").find(["wide", "exact"], "api.example.com", 443)
    assert chosen is not None
    assert chosen.name == "exact"


def test_methods_are_limited_to_those_listed() -> None:
    limited = credential(methods=("get", "POST"))
    assert limited.permits("GET", "/")
    assert limited.permits("POST", "/x")
    assert not limited.permits("DELETE", "/")
    assert not limited.permits("get", "/")
    assert credential().permits("PATCH", "/any/../thing")
    assert not credential().permits("TRACE", "/")
    assert not credential().permits("CONNECT", "/")


PATHS = ("/repos/acme/**", "/users/*/keys", "/api/projects/acme%2Ftool/*", "/exact")


@pytest.mark.parametrize(
    "path",
    [
        "/repos/acme/tool",
        "/repos/acme/tool/issues?page=../..",
        "/repos/acme/",
        "/repos/%61cme/tool",
        "/repos/acme/%E2%82%AC",
        "/repos/acme/a..b/.git/...",
        "/users/me/keys",
        "/api/projects/acme%2Ftool/issues",
        "/api/projects/acme%2ftool/issues",
        "/exact?",
    ],
)
def test_a_path_within_the_patterns_is_permitted(path: str) -> None:
    assert credential(paths=PATHS).permits("GET", path)


@pytest.mark.parametrize(
    "path",
    [
        "/repos/other",
        "/repos/acme",
        "/repos/acmex/tool",
        "/Repos/acme/tool",
        "/users/a/b/keys",
        "/users/a%2Fb/keys",
        "/users/%2e%2e/keys",
        "/repos/acme/../other",
        "/repos/acme/..",
        "/repos/acme/./tool",
        "/repos/acme/%2e%2e/other",
        "/repos/acme/%2E./other",
        "/repos/acme/..%2fother",
        "/repos/acme/%2e%2e%2fother",
        "/repos/acme/%252e%252e/other",
        "/repos/acme/..;/other",
        "/repos/acme/..%3bx/other",
        "/repos/acme/..\\other",
        "/repos/acme/..%5cother",
        "/repos/acme/%c0%ae%c0%ae/other",
        "/repos/acme/%00",
        "/repos/acme/%0a",
        "/repos/acme/%",
        "/repos/acme/%zz",
        "/repos/acme//tool",
        "//repos/acme/tool",
        "/other//repos/acme/tool",
        "/repos/acme/x#y",
        "repos/acme/tool",
        "https://api.example.com/repos/acme/tool",
        "*",
        "",
        "/exact/",
        "/repos/acme/" + "a" * 5000,
    ],
)
def test_any_other_path_or_one_that_servers_read_in_different_ways_is_not_permitted(path: str) -> None:
    assert not credential(paths=PATHS).permits("GET", path)


@given(st.text(st.sampled_from(list("./%2eEfFacme\\;")), max_size=24))
def test_no_spelling_of_a_path_leads_out_of_a_pattern(rest: str) -> None:
    """Whatever is permitted, an origin that decodes once and resolves dot segments stays below the pattern."""
    path = "/repos/acme/" + rest
    if credential(paths=PATHS[:1]).permits("GET", path):
        decoded = path.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/")
        assert os.path.normpath(decoded + "x").startswith("/repos/acme/")


def test_a_long_path_is_matched_in_linear_time() -> None:
    pattern = credential(paths=("/" + "**a/" * 30 + "b",))
    assert not pattern.permits("GET", "/" + "a/" * 2000)  # a backtracking matcher would not end


def test_a_header_replaces_whatever_the_client_sent_under_its_name() -> None:
    sent = [(b"Host", b"h"), (b"AUTHORIZATION", b"mine"), (b"authorization", b"too"), (b"Accept", b"*/*")]
    target, headers = credential().apply("/x?y", sent, SECRET)
    assert target == "/x?y"
    assert headers == [(b"Host", b"h"), (b"Accept", b"*/*"), (b"Authorization", f"Bearer {VALUE}".encode())]


def test_a_header_of_another_name_and_template_is_set() -> None:
    own = credential(header="X-Api-Key", template="key={}")
    assert own.apply("/", [(b"x_api_key", b"mine")], SECRET)[1] == [(b"X-Api-Key", f"key={VALUE}".encode())]


def test_basic_authentication_has_the_secret_as_its_password() -> None:
    ((name, value),) = credential(username="git").apply("/", [], SECRET)[1]
    assert name == b"Authorization"
    assert base64.b64decode(value.removeprefix(b"Basic ")) == f"git:{VALUE}".encode()


def test_a_query_parameter_replaces_the_clients_own_in_any_spelling() -> None:
    keyed = credential(query="api key")
    target, headers = keyed.apply("/x?a=1&api+key=mine&api%20key=too&%61pi%20key&b", [(b"Host", b"h")], SECRET)
    assert target == "/x?a=1&b&api%20key=tok%2Fen%2Bof%20the%3Dagent%25"
    assert headers == [(b"Host", b"h")]
    assert keyed.apply("/x", [], SECRET)[0].startswith("/x?api%20key=")


def test_headers_that_change_the_method_or_path_are_removed() -> None:
    sent = [(b"X-HTTP-Method-Override", b"DELETE"), (b"X-Original-URL", b"/admin"), (b"X-Other", b"1")]
    assert credential(query="key").apply("/", sent, SECRET)[1] == [(b"X-Other", b"1")]


def test_every_form_that_is_sent_or_commonly_echoed_is_redacted() -> None:
    forms = credential(username="git").forms(SECRET)
    assert VALUE.encode() in forms
    assert b"tok%2Fen%2Bof%20the%3Dagent%25" in forms
    assert b"tok%2fen%2bof%20the%3dagent%25" in forms
    assert b"tok%2Fen%2Bof+the%3Dagent%25" in forms
    assert b"tok\\/en+of the=agent%" in forms
    assert base64.b64encode(f"git:{VALUE}".encode()) in forms


async def test_a_secret_in_a_variable_is_read_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    named = credential(variable="AGENT_TOKEN")
    with pytest.raises(CredentialUnavailable, match="no variable AGENT_TOKEN"):
        await named.secret()
    for value in ("first-value", "second-value"):
        monkeypatch.setenv("AGENT_TOKEN", value)
        assert (await named.secret()).reveal() == value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first-value\n")
    path.chmod(0o600)
    return path


async def test_a_secret_in_a_file_is_read_again_when_the_file_changes(file: Path) -> None:
    kept = credential(file=file)
    assert (await kept.secret()).reveal() == "first-value"
    assert await kept.secret() is await kept.secret()
    replacement = file.with_name("new")
    replacement.write_text("other-value")
    replacement.chmod(0o600)
    replacement.rename(file)
    assert (await kept.secret()).reveal() == "other-value"


async def test_a_file_that_other_users_can_read_is_refused() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # tmp_path lies below a private directory
        os.chmod(directory, 0o755)
        path = Path(directory, "token")
        path.write_text("first-value")
        path.chmod(0o644)
        with pytest.raises(CredentialUnavailable, match=f"chmod 600 {path}"):
            await credential(file=path).secret()
        path.chmod(0o600)
        assert (await credential(file=path).secret()).reveal() == "first-value"


async def test_a_file_that_is_missing_or_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialUnavailable, match="No such file"):
        await credential(file=tmp_path / "absent").secret()
    with pytest.raises(CredentialUnavailable, match="Is a directory"):
        await credential(file=tmp_path).secret()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CredentialUnavailable, match="not a regular file"):
        await credential(file=tmp_path / "fifo").secret()


def counting(tmp_path: Path, script: str) -> tuple[list[str], Callable[[], int]]:
    """Return a command that counts its runs, and what returns the count."""
    runs = tmp_path / "runs"
    return ["sh", "-c", f"echo x >> {runs}; {script}"], lambda: len(runs.read_text().split())


async def test_a_command_runs_once_for_many_requests(tmp_path: Path) -> None:
    command, runs = counting(tmp_path, "echo from-command")
    one = credential(command=command)
    values = []

    async def use() -> None:
        values.append((await one.secret()).reveal())

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(use)
    assert values == ["from-command"] * 10
    assert runs() == 1


async def test_a_command_runs_again_when_its_answer_is_too_old(tmp_path: Path) -> None:
    command, runs = counting(tmp_path, "echo from-command")
    brief = credential(command=command, command_ttl_s=1e-9)
    await brief.secret()
    await brief.secret()
    assert runs() == 2


async def test_a_command_that_fails_is_named_without_what_it_printed(tmp_path: Path) -> None:
    command, runs = counting(tmp_path, "echo hidden-token; echo hidden-token >&2; exit 3")
    failing = credential(command=command)
    for _ in range(2):
        with pytest.raises(CredentialUnavailable, match="sh ended with status 3") as raised:
            await failing.secret()
        assert "hidden" not in "".join(traceback.format_exception(raised.value, chain=True))
    assert runs() == 1


async def test_a_command_that_does_not_end_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxd.network.secret_source._COMMAND_TIMEOUT_S", 0.5)
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(CredentialUnavailable, match="did not end within"):
        await credential(command=["sh", "-c", f"exec 3>{alive}; sleep 1000 & wait"]).secret()
    await anyio.wait_readable(reader)  # an end: no process has the other side open any more
    assert os.read(reader, 1) == b""
    os.close(reader)


async def test_a_command_that_prints_without_end_or_cannot_start_is_refused() -> None:
    with pytest.raises(CredentialUnavailable, match="longer than 16384 bytes"):
        await credential(command=["cat", "/dev/zero"]).secret()
    with pytest.raises(CredentialUnavailable, match="cannot be started"):
        await credential(command=["/nonexistent/program"]).secret()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"x" * (MAX_SECRET_BYTES + 1), "longer than"),
        (b"hidden-token\nsecond", "control character"),
        (b"hidden-token\x00", "control character"),
        (b"hidden\x7ftoken", "control character"),
        (b"hidden-\xc2\x85token", "control character"),
        (b"hidden-\xff-token", "not UTF-8"),
        (b" hidden-token", "begins or ends with a space"),
        (b"hidden", "fewer than 8"),
    ],
)
async def test_a_value_that_cannot_be_used_is_refused_and_not_shown(file: Path, value: bytes, reason: str) -> None:
    file.write_bytes(value)
    with pytest.raises(CredentialUnavailable, match=reason) as raised:
        await credential(file=file).secret()
    assert str(raised.value).startswith("cannot use the secret of credential github: ")
    shown = "".join(traceback.format_exception(raised.value, chain=True)) + repr(raised.value)
    assert "hidden" not in shown


async def test_the_longest_value_and_one_trailing_line_break_are_accepted(file: Path) -> None:
    file.write_bytes(b"x" * MAX_SECRET_BYTES + b"\r\n")
    assert len((await credential(file=file).secret()).reveal()) == MAX_SECRET_BYTES


def test_no_representation_shows_a_secret() -> None:
    shown = [repr(SECRET), str(SECRET), f"{SECRET}", f"{[SECRET]!r}", repr(credential())]
    assert not any(VALUE in text for text in shown)
    for copies in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copies(SECRET)


async def test_the_forms_of_a_secret_are_noted_when_it_is_read_and_no_command_runs_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", VALUE)
    ran = tmp_path / "ran"
    noted: set[str] = set()
    store = CredentialStore(
        {
            "github": CredentialOptions(host="api.example.com", variable="AGENT_TOKEN", username="bot"),
            "absent": CredentialOptions(host="absent.example.com", file=tmp_path / "absent"),
            "vault": CredentialOptions(host="vault.example.com", command=("touch", str(ran))),
        },
        noted.update,
    )
    await store.note_all()
    assert {VALUE, quote(VALUE, safe=""), base64.b64encode(f"bot:{VALUE}".encode()).decode()} <= noted
    assert not ran.exists()
