"""Mistakes of a newcomer's first hour, one row each: an exit code, one sentence and the next step, never a traceback.

Every row is a real process in a directory with the files that the mistake needs, while a real daemon runs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.ordinary_user import UID, ordinary_environment, public_python
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

SANDBOXD = Path(sys.executable).parent / "sandboxd"
MOST_LINES = 2
MOST_CHARS = 420
TCP = "--tcp 127.0.0.1:18080 --token-file"

STORES = """
def raises():
    raise RuntimeError("no database here")

def returns_a_number():
    return 7

def make_store():
    return object()
"""


@dataclass(frozen=True)
class Mistake:
    """`line` is what is typed after `sandboxd`; names in braces are places of the test."""

    name: str
    line: str
    code: int
    says: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    as_stranger: bool = False


def serve(name: str, options: str, code: int, *says: str, **env: str) -> Mistake:
    places = "" if "--data" in options else "--data {tmp}/data "
    places += "" if "--socket" in options else "--socket {tmp}/new.sock "
    return Mistake(f"serve: {name}", f"serve {places}{options}", code, says, env)


def ask(name: str, line: str, code: int, *says: str, as_stranger: bool = False, **env: str) -> Mistake:
    socket_env = {} if "--socket" in line else {"SANDBOXD_SOCKET": "{socket}"}
    return Mistake(name, line, code, says, {**socket_env, **env}, as_stranger)


MISTAKES = (
    # the store
    serve("unknown scheme", "--store mysql://db", 2, "no store has the scheme mysql", "sqlite:///FILE"),
    serve("a promised scheme", "--store postgresql://db", 2, "no store has the scheme postgresql", "sqlite:///FILE"),
    serve("a store that is not a URL", "--store memo.db", 2, "it is not a URL", "sqlite:///FILE"),
    serve("sqlite with two slashes", "--store sqlite://memo.db", 2, "sqlite:///relative/path"),
    serve("a relative directory", "--store file://memo", 2, "file:///DIRECTORY"),
    serve("no such module", "--store python:nomod:f", 1, "there is no module nomod", "PYTHONPATH"),
    serve("no such function", "--store python:stores:make_stor", 2, "has no function", "did you mean make_store?"),
    serve("no function named", "--store python:stores", 2, "does not name a factory", "python:MODULE:FACTORY"),
    serve("a factory that raises", "--store python:stores:raises", 1, "RuntimeError: no database here", "correct the"),
    serve("not a provider", "--store python:stores:returns_a_number", 1, "read_memory_document", "return a provider"),
    serve("a module that does not parse", "--store python:broken:f", 1, "SyntaxError", "correct the module"),
    serve("a directory that cannot be made", "--store file:///proc/none/memo", 1, "No such file", "another --store"),
    serve("a file that cannot be made", "--store sqlite:////proc/none/memo.db", 1, "No such file", "another --store"),
    # the token and the port
    serve("TCP without a token", "--tcp 127.0.0.1:18080", 2, "without a token", "--token-file"),
    serve("token file missing", f"{TCP} none", 2, "No such file", "openssl rand"),
    serve("token too short", f"{TCP} short", 2, "fewer than 16 characters", "longer token"),
    serve("token that others can read", f"{TCP} public", 2, "every user of this host can read it", "chmod 600"),
    serve("token file is a directory", f"{TCP} .", 2, "Is a directory", "--token-file"),
    serve("port taken", "--tcp 127.0.0.1:{port} --token-file token", 1, "Address already in use", "another --tcp"),
    serve("port out of range", "--tcp 127.0.0.1:99999 --token-file token", 2, "from 1 to 65535"),
    serve("no port", "--tcp 127.0.0.1 --token-file token", 2, "HOST:PORT", "127.0.0.1:8080"),
    serve("another host's address", "--tcp 192.0.2.1:18080 --token-file token", 1, "does not have that address"),
    serve("certificate without its key", f"{TCP} token --tls-cert token", 2, "TLS needs a certificate", "--tls-key"),
    serve("certificate missing", f"{TCP} token --tls-cert none --tls-key token", 2, "No such file", "--tls-cert"),
    serve("not a certificate", f"{TCP} token --tls-cert token --tls-key token", 2, "not a PEM file", "private key"),
    serve("TLS without TCP", "--tls-cert token --tls-key token", 2, "without TCP", "--tcp"),
    # the data directory and the socket
    serve("data is a file", "--data token", 1, "is not a directory", "another --data"),
    serve("data below a file", "--data token/data", 1, "is not a directory", "another --data"),
    serve("data of another user", "--data foreign", 1, f"belongs to uid {UID}", "chown"),
    serve("data that cannot be made", "--data /proc/none", 1, "No such file", "another --data"),
    serve("data of another daemon", "--data {data}", 1, "the daemon with pid", "another --data"),
    serve("socket of another daemon", "--socket {socket}", 1, "another daemon answers there", "another --socket"),
    serve("socket path too long", f"--socket {'x' * 110}", 1, "at most 107 bytes", "another --socket"),
    serve("socket in no directory", "--socket /proc/none/s.sock", 1, "No such file", "another --socket"),
    serve("socket is a file", "--socket token", 1, "not a socket", "another --socket"),
    Mistake("a user without a home", "ls", 2, ("no home directory", "--socket"), {}, True),
    Mistake("serve: data not writable", "serve --data {tmp}/none --socket {tmp}/s", 1, ("denied", "--data"), {}, True),
    # settings
    serve("unknown variable", "", 2, "there is no such setting", "did you mean SANDBOXD_POOL?", SANDBOXD_POL="3"),
    serve("unknown variable of a table", "", 2, "did you mean SANDBOXD_LIMITS__CPUS?", SANDBOXD_LIMITS__CPU="1"),
    serve("one underscore", "", 2, "did you mean SANDBOXD_LIMITS__MEMORY_MB?", SANDBOXD_LIMITS_MEMORY_MB="64"),
    serve("nothing like a setting", "", 2, "SANDBOXD_FROBNICATE", "`sandboxd serve --help`", SANDBOXD_FROBNICATE="1"),
    serve("wrong type in a variable", "", 2, "DRAIN_S='soon'", "must be a valid number", SANDBOXD_DRAIN_S="soon"),
    serve("a table that is not one", "", 2, "JSON object", "SANDBOXD_LIMITS__NAME", SANDBOXD_LIMITS="64mb"),
    serve("no such file", "", 2, "the file does not exist", "correct SANDBOXD_CONFIG", SANDBOXD_CONFIG="/none.toml"),
    serve("broken TOML", "", 2, "broken.toml", "line 1", "correct that line", SANDBOXD_CONFIG="broken.toml"),
    serve("unknown key", "", 2, "pol in key.toml", "did you mean pool?", SANDBOXD_CONFIG="key.toml"),
    serve("unknown key in a table", "", 2, "did you mean limits.memory_mb?", SANDBOXD_CONFIG="table.toml"),
    serve("wrong type in TOML", "", 2, "drain_s in type.toml", "must be a valid number", SANDBOXD_CONFIG="type.toml"),
    serve("unknown engine", "--engine dokcer", 2, "'auto', 'docker' or 'bubblewrap'"),
    serve("unknown option", "--pol 3", 2, "--pol", "--pool"),
    serve("wrong type of an option", "--pool many", 2, "--pool", "must be a valid integer", "`sandboxd serve --help`"),
    serve("no skills there", "", 2, "must be an existing directory", "create it", SANDBOXD_SKILLS="/none"),
    # the engine and the image
    serve("an image that is not there", "--image none:1", 1, "none:1 is not in the engine", "pull it"),
    serve("no engine there", "", 1, "unix:///none.sock (from DOCKER_HOST)", "start it",
    DOCKER_HOST="unix:///none.sock"), Mistake("no engine to build in", "image build", 1, ("No such file", "start it"),
    {"DOCKER_HOST": "unix:///none.sock"}), Mistake(
        "serve: not in the engine's group",
        "serve --data {tmp}/foreign/data --socket {tmp}/foreign/s",
        1,
        ("Permission denied", "sudo usermod -aG docker"),
        {"DOCKER_HOST": "{engine}"},
        as_stranger=True,
    ),
    # no daemon
    ask("no daemon", "ls --socket none.sock", 3, "cannot reach the daemon", "`sandboxd serve`"),
    ask("no daemon for exec", "exec --socket none.sock s true", 3, "cannot reach the daemon", "`sandboxd serve`"),
    ask("no daemon for doctor", "doctor --socket none.sock", 3, "cannot reach the daemon", "`sandboxd serve`"),
    ask("socket is a plain file", "ls --socket token", 3, "Connection refused", "`sandboxd serve`"),
    ask("another user's socket", "ls", 3, "Permission denied", "as the daemon's user", as_stranger=True),
    # sandboxes and commands
    ask("unknown session", "exec none true", 125, "cannot find a sandbox", "`sandboxd create SESSION`"),
    ask("a removed sandbox", "exec removed true", 125, "cannot find a sandbox", "`sandboxd create SESSION`"),
    ask("remove twice", "rm removed", 1, "the sandbox of removed: it does not exist", "`sandboxd ls`"),
    ask("another user's session", "create here --user bob", 1, "another user", "`sandboxd ls`"),
    ask("a session id that is a path", "create ../x", 2, "cannot use this session id", "A-Z a-z 0-9"),
    ask("a tenant with a slash", "ls --tenant a/b", 2, "cannot use this tenant id", "A-Z a-z 0-9"),
    ask("too little memory", "create new --memory-mb 1", 2, "memory_mb", "greater than or equal to 32"),
    ask("a variable without a value", "create new --env A", 2, "'A' is not NAME=VALUE", "`sandboxd create --help`"),
    ask("create with an image that is not there", "create new --image none:1", 1, "not in the engine", "pulled"),
    ask("nothing to run", "exec here", 2, "missing argument", "`sandboxd exec --help`"),
    ask("no such directory", "exec --cwd /none here true", 125, "cannot run in /none"),
    ask("a shell without a terminal", "shell here", 2, "stdin is not a terminal", "`sandboxd exec`"),
    ask("unknown command", "lst", 2, "no such command 'lst'", "'ls'"),
    ask("an argument too many", "ls here", 2, "unexpected extra argument", "`sandboxd ls --help`"),
    # tools
    ask("a bare word for a tool", "tool here Bash ls", 2, "neither NAME=VALUE nor a JSON object", "Bash command=…"),
    ask("half of JSON", 'tool here Bash {"command":', 2, "as JSON", "Bash command=…"),
    # memory
    ask("a document's name that is a path", "memo cat here ../../x", 2, "cannot use this document name", "A-Z a-z 0-9"),
    ask("a reserved name", "memo cat here tool-results", 2, "tool-results is reserved"),
    ask("a document that is not there", "memo cat here NONE.md", 1, "cannot find NONE.md", "`sandboxd memo ls"),
    ask("a revision that is not there", "memo restore here HERE.md 9", 1, "revision 9", "`sandboxd memo history"),
    ask("a name without a session", "memo cat HERE.md", 2, "expected SESSION NAME", "--user USER"),
    ask("text from a file that is not there", "memo put here A.md --file none", 2, "No such file", "--file"),
    ask("import of nothing", "memo import here none", 2, "it is not a directory", "memo export"),
    ask("export to nowhere", "memo export here /proc/none", 1, "cannot write to /proc/none", "another directory"),
    ask("no such editor", "memo edit here HERE.md", 1, "no-editor", "set EDITOR", EDITOR="no-editor", VISUAL=""),
    ask("a path outside memory", "refresh here /etc/passwd", 2, "not under /workspace/memo"),
    ask("two choices at once", "consolidate --all --once", 2, "choose one of --all, --once"),
)  # fmt: skip


@dataclass(frozen=True)
class Places:
    tmp: Path
    socket: Path
    data: Path
    port: int
    engine: str


@pytest.fixture(scope="module")
def places(daemon: RunningDaemon, engine_socket: str) -> Iterator[Places]:
    """A directory with the files of the rows, a port that is taken, and a daemon with one live session."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-first-hour-") as name:
        tmp = Path(name)
        tmp.chmod(0o755)  # a token is public only if every directory above it is
        _write_files(tmp)
        with socket.socket() as taken, daemon.client() as client:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            for session in ("here", "removed"):
                client.ensure_sandbox(session, user="ada")
            client.destroy_sandbox("removed")
            client.write_memo("here", "HERE.md", "text")
            yield Places(tmp, daemon.socket, daemon.data, taken.getsockname()[1], engine_socket)
            client.destroy_sandbox("here")


def _write_files(tmp: Path) -> None:
    texts = {"short": "short\n", "public": "x" * 32, "token": "x" * 32, "stores.py": STORES, "broken.py": "def (:\n"}
    texts |= {"broken.toml": "pool = = 3\n", "key.toml": "pol = 3\n", "type.toml": 'drain_s = "soon"\n'}
    texts |= {"table.toml": "[limits]\nmemry_mb = 64\n"}
    for name, text in texts.items():
        (tmp / name).write_text(text)
        (tmp / name).chmod(0o600 if name in ("short", "token") else 0o644)
    (tmp / "foreign").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp / "foreign", UID, UID)


def run(places: Places, mistake: Mistake, *options: str) -> subprocess.CompletedProcess[str]:
    names = asdict(places)
    words = [_fill(word, names) for word in mistake.line.split()]
    env = {name: _fill(value, names) for name, value in mistake.env.items()}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOXD_")}
    if mistake.as_stranger:
        command = [public_python(), "-m", "sandboxd", *words, *options]
        env = {**ordinary_environment(), **env}
        return subprocess.run(
            command, cwd="/", env=env, user=UID, group=UID, extra_groups=[], capture_output=True, text=True, timeout=60
        )
    return subprocess.run(
        [SANDBOXD, *words, *options],
        cwd=places.tmp,
        env={**ours, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _fill(text: str, names: dict[str, object]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def test_there_are_at_least_forty_cases_with_distinct_names() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 40


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_with_one_sentence_and_the_next_step(places: Places, mistake: Mistake) -> None:
    if os.geteuid() != 0 and (mistake.as_stranger or "foreign" in mistake.line):
        pytest.skip("only root can be another user")
    done = run(places, mistake)
    said = done.stderr.replace("x" * 110, "x…")
    assert done.returncode == mistake.code, said
    assert done.stdout == ""
    assert "Traceback" not in said
    assert said.startswith("cannot "), said
    assert len(said.splitlines()) <= MOST_LINES, said
    assert len(said) <= MOST_CHARS, said
    assert [words for words in mistake.says if words not in said] == [], said
    has_step = len(said.splitlines()) == MOST_LINES or "; " in said or "must be" in said
    assert has_step, said


@pytest.mark.parametrize(
    "name", ["serve: unknown variable", "no daemon", "half of JSON", "an argument too many", "remove twice"]
)
def test_with_json_a_mistake_is_one_object_with_a_code(places: Places, name: str) -> None:
    mistake = next(one for one in MISTAKES if one.name == name)
    done = run(places, mistake, "--json")
    problem = json.loads(done.stderr)
    assert done.returncode == mistake.code
    assert problem["code"]
    assert problem["detail"].startswith("cannot ")
    assert isinstance(problem["retryable"], bool)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tool here Nope", "there is no such tool; call one of Bash"),
        ("tool here bash command=ls", "did you mean Bash?"),
        ("tool here Bash", "Bash needs command (text)"),
        ("tool here Read file_path=/workspace/a limit=many", "limit (a whole number)"),
    ],
)
def test_a_mistake_in_a_tool_call_is_a_result_as_a_model_gets_it(places: Places, line: str, says: str) -> None:
    done = run(places, ask(line, line, 1))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("cannot ")
    assert says in done.stdout


def test_a_reader_that_leaves_early_sees_no_traceback(places: Places) -> None:
    line = f"{SANDBOXD} tool here --socket {places.socket} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "1")  # the pipe may have taken all of it before its reader left


def test_ctrl_c_ends_a_command_silently(places: Places) -> None:
    # The default action, because a suite that runs in the background may have inherited an ignored SIGINT.
    line = [SANDBOXD, "exec", "--no-stdin", "--socket", places.socket, "here", "echo started; sleep 60"]
    command = ["env", "--default-signal=INT", *map(str, line)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""


def test_ctrl_c_twice_ends_the_daemon_without_a_traceback(engine_socket: str, agent_image: str, tmp_path: Path) -> None:
    places: list[str | Path] = ["--data", tmp_path / "data", "--socket", tmp_path / "s.sock"]
    command = [SANDBOXD, "serve", *places, "--pool", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
