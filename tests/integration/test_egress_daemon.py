"""What sandboxes reach through a real daemon, and what they do not: real clients inside, real servers outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from sandboxd.errors import InvalidRequest
from sandboxd.models.network import EgressRecord
from tests.origin_servers import OriginServers
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

SECRET = "s3cret-canary-9f31c7b2"
NAMES = ("pypi.test", "npm.test", "git.test", "api.test", "sub.api.test", "other.test")


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OriginServers]:
    files = tmp_path_factory.mktemp("files")
    _make_repository(files / "repo.git", tmp_path_factory.mktemp("checkout"))
    with OriginServers(tmp_path_factory.mktemp("origin"), *NAMES, files=files) as servers:
        yield servers


def _make_repository(bare: Path, checkout: Path) -> None:
    """Make a repository that git clones over HTTP without a server program."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main", "-C"]
    (checkout / "hello.txt").write_text("hello from git\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, str(checkout), *words], check=True, timeout=60)
    subprocess.run(["git", "clone", "-q", "--bare", str(checkout), str(bare)], check=True, timeout=60)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True, timeout=60)


@pytest.fixture(scope="module", params=["docker", "bubblewrap"])
def daemon(
    request: pytest.FixtureRequest, origin: OriginServers, engine_socket: str, agent_image: str
) -> Iterator[RunningDaemon]:
    options = {
        "hosts": {name: ["127.0.0.1"] for name in NAMES} | {"metadata.test": ["169.254.169.254"]},
        "credentials": {
            "api": {"host": "api.test", "port": origin.port, "private": True, "variable": "API_SECRET"},
            "narrow": {
                "host": "sub.api.test",
                "port": origin.port,
                "private": True,
                "username": "bot",
                "variable": "API_SECRET",
                "methods": ["GET"],
                "paths": ["/echo/acme/**"],
            },
        },
        "tenants": {"bounded": {"allow": ["pypi.test"]}},
    }
    running = RunningDaemon(engine=request.param, network=json.dumps(options))
    if request.param == "docker":
        running.settings["image"] = agent_image
    try:
        yield running.start(environment=environment_of(origin))
        assert running.terminate() == 0  # I11
    finally:
        running.stop()


def environment_of(origin: OriginServers) -> dict[str, str]:
    """Return the environment of a daemon whose world these servers are."""
    return {
        "SSL_CERT_FILE": str(origin.ca_file),
        "API_SECRET": SECRET,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"https://pypi.test:{origin.port}/simple/",
        "NPM_CONFIG_REGISTRY": f"https://npm.test:{origin.port}/",
    }


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client


def records(client: Client, session: str) -> list[EgressRecord]:
    return client.list_egress(session).items


def run(client: Client, session: str, command: str) -> str:
    result = client.exec(session, command, timeout_s=60)
    assert result.exit_code == 0, (command, result.stdout, result.stderr)
    return result.stdout


def allowed(host: str, port: int) -> dict[str, object]:
    return {"host": host, "port": port, "private": True}


def test_ordinary_clients_reach_what_is_allowed(client: Client, origin: OriginServers) -> None:
    port = origin.port
    hosts = [allowed("git.test", port), allowed("other.test", port), allowed("other.test", origin.http_port)]
    client.ensure_sandbox("clients", network={"allow": hosts})
    assert "hello from git" in run(client, "clients", f"git clone -q https://git.test:{port}/repo.git && cat repo/*")
    assert '"path": "/echo"' in run(client, "clients", f"curl -sSf https://other.test:{port}/echo")
    assert '"path": "/echo"' in run(client, "clients", f"curl -sSf http://other.test:{origin.http_port}/echo")
    python = f"import urllib.request; print(urllib.request.urlopen('https://other.test:{port}/echo').status)"
    assert run(client, "clients", f'python3 -c "{python}"') == "200\n"
    assert {record.decision for record in records(client, "clients")} == {"allowed"}
    events = [event.fields for event in client.events(0, follow=False) if event.kind == "egress"]
    assert ("clients", "git.test", "allowed") in {(one["session"], one["host"], one["decision"]) for one in events}
    assert {record.rule for record in records(client, "clients")} == {
        f"git.test:{port}",
        f"other.test:{port}",
        f"other.test:{origin.http_port}",
    }
    client.destroy_sandbox("clients")


def test_pip_installs_from_the_index_that_the_host_uses(client: Client, origin: OriginServers) -> None:
    client.ensure_sandbox("pip", network={"allow": ["preset:packages"]})
    command = "pip install --quiet --disable-pip-version-check --target lib tinypkg && PYTHONPATH=lib python3 -c "
    assert run(client, "pip", command + "'import tinypkg; print(tinypkg.ANSWER)'") == "42\n"
    assert {record.host for record in records(client, "pip")} == {"pypi.test"}
    client.destroy_sandbox("pip")


def test_npm_installs_from_the_registry_that_the_host_uses(
    daemon: RunningDaemon, client: Client, origin: OriginServers
) -> None:
    if daemon.settings["engine"] == "docker":
        pytest.skip("the default image has no npm; bubblewrap shows the host's")
    client.ensure_sandbox("npm", network={"allow": ["preset:packages"]})
    command = "npm install --silent --no-audit --no-fund --no-update-notifier tinynpm && "
    assert run(client, "npm", command + "node -p 'require(\"tinynpm\")'") == "42\n"
    assert "npm.test" in {record.host for record in records(client, "npm")}
    client.destroy_sandbox("npm")


REFUSED = {
    "another host": ("curl -sS https://other.test:{port}/", "not among the hosts"),
    "another port": ("curl -sS https://api.test:1/", "not among the hosts"),
    "an address instead of the name": ("curl -sSk --noproxy '' https://127.0.0.1:{port}/", "not among the hosts"),
    "another spelling of an address": (
        "curl -sSk --noproxy '' https://127.1:{port}/",
        "not among the hosts|ends in a number",
    ),
    "a number that is an address": (
        "curl -sSk --noproxy '' https://0x7f000001:{port}/",
        "not among the hosts|ends in a number",
    ),
    "the metadata address": ("curl -sS http://169.254.169.254/latest/", "not among the hosts"),
    "a name with the metadata address": ("curl -sS http://metadata.test/latest/", "only private addresses"),
    "a name with a private address": ("curl -sS https://git.test:{port}/", "only private addresses"),
    "another Host header": ("curl -sS -H 'Host: evil.test' http://api.test:{http_port}/echo", "Host header"),
    "https without a tunnel": (
        "printf 'GET https://api.test/ HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n' | {nc}",
        "CONNECT",
    ),
    "no proxy request": ("printf 'GET / HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n' | {nc}", "full URL"),
    "garbage": ("head -c 100000 /dev/urandom | {nc}", "not valid HTTP|exceeds"),
    "endless headers": ("(echo 'GET / HTTP/1.1'; yes 'X: y' | head -c 200000) | {nc}", "not valid HTTP|exceeds"),
    "a forged server name": ("{tls} evil.test", "asks for the server name evil.test"),
    "no server name": ("{tls} ''", "asks for no server name"),
    "plain text in a tunnel": ("{tunnel}", "not a TLS greeting"),
}
NC = "python3 -c 'import socket,sys,shutil;s=socket.create_connection((\"127.0.0.1\",3128));{body}'"
SEND = (
    'exec("try:\\n s.sendall(sys.stdin.buffer.read())\\nexcept OSError: pass");'
    'exec("try:\\n sys.stdout.buffer.write(s.recv(65536))\\nexcept OSError: pass")'
)
OPEN = 's.sendall(b"CONNECT api.test:{port} HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n");s.recv(1000);'
TLS = (
    'python3 -c \'import socket,ssl,sys;s=socket.create_connection(("127.0.0.1",3128));' + OPEN + "c=ssl.SSLContext();"
    "c.check_hostname=False;c.verify_mode=0;"
    'exec("try:\\n c.wrap_socket(s,server_hostname=sys.argv[1] or None)\\nexcept OSError: pass")\''
)


@pytest.mark.parametrize("attempt", REFUSED)
def test_everything_else_is_refused_with_a_reason_in_the_audit(
    client: Client, origin: OriginServers, attempt: str
) -> None:
    network = {
        "allow": [allowed("api.test", origin.port), allowed("api.test", origin.http_port), "metadata.test", "git.test"]
    }
    client.ensure_sandbox("refused", network=network)
    command, reason = REFUSED[attempt]
    fill = {"port": origin.port, "http_port": origin.http_port, "nc": NC.replace("{body}", SEND)}
    fill["tls"] = TLS.replace("{port}", str(origin.port))
    fill["tunnel"] = NC.replace(
        "{body}", OPEN.replace("{port}", str(origin.port)) + 's.sendall(b"EHLO me\\r\\n");s.recv(9)'
    )
    for name, value in fill.items():
        command = command.replace(f"{{{name}}}", str(value))
    seen, last = len(origin.seen), max((record.id for record in records(client, "refused")), default=0)
    client.exec("refused", command, timeout_s=60)
    found = client.list_egress("refused", last).items
    assert [record.decision for record in found] == ["denied"], (found, attempt)
    assert re.search(reason, found[0].reason or ""), found[0].reason
    assert len(origin.seen) == seen, "the host saw the request"


def test_a_model_is_told_what_is_allowed(client: Client) -> None:
    client.ensure_sandbox("told", network={"allow": ["api.example.com", "*.example.org:443"]})
    text = run(client, "told", "curl -s http://evil.test/")
    assert "evil.test:80 is not among the hosts that this sandbox may reach" in text
    assert "api.example.com, *.example.org:443" in text
    assert "network.allow" in text
    assert "403" in run(client, "told", "curl -s -o /dev/null -w '%{http_connect}' https://evil.test/; true")
    client.destroy_sandbox("told")


def test_the_clients_of_a_sandbox_are_told_of_the_proxy_and_what_to_trust(client: Client) -> None:
    client.ensure_sandbox("variables", network={"allow": ["example.org"]})
    shown = run(client, "variables", "env")
    variables = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        assert variables[name] == "http://127.0.0.1:3128"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "localhost,127.0.0.1,::1"
    bundles = {
        variables[name]
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE")
    }
    assert bundles == {"/run/sandboxd/ca.pem"}
    refused = "echo >> /run/sandboxd/ca.pem && echo written; grep -c BEGIN /run/sandboxd/ca.pem"
    assert (
        int(run(client, "variables", refused)) >= 2
    )  # the test authority that the daemon trusts, and the sandbox's own
    assert "PRIVATE" not in run(client, "variables", "cat /run/sandboxd/ca.pem")
    client.destroy_sandbox("variables")


def test_the_command_shows_and_follows_the_record(daemon: RunningDaemon, client: Client, origin: OriginServers) -> None:
    client.ensure_sandbox("followed", network={"allow": [allowed("other.test", origin.http_port)]})
    run(client, "followed", f"curl -sS http://other.test:{origin.http_port}/echo?secret=1")
    command = [sys.executable, "-m", "sandboxd", "egress", "followed"]
    environment = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    [cells] = [line.split("\t") for line in printed.splitlines()]
    assert [cells[0], *cells[2:6]] == [
        "1",
        "allowed",
        f"other.test:{origin.http_port}",
        f"other.test:{origin.http_port}",
        "GET /echo 200",
    ]
    command += ["--follow", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["path"] == "/echo"
            run(client, "followed", "curl -sS http://evil.test/")
            new = json.loads(following.stdout.readline())
            assert (new["id"], new["host"], new["port"], new["decision"]) == (2, "evil.test", 80, "denied")
            following.send_signal(signal.SIGINT)
            assert following.wait(timeout=60) == 0
        finally:
            following.kill()
    client.destroy_sandbox("followed")


def test_without_network_nothing_listens_and_nothing_is_set(client: Client) -> None:
    client.ensure_sandbox("offline")
    assert run(client, "offline", "env | grep -ci proxy; true") == "0\n"
    refused = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 3128))'"
    assert "Connection refused" in client.exec("offline", refused).stderr
    client.destroy_sandbox("offline")


def test_access_is_given_changed_and_taken_while_the_sandbox_runs(client: Client, origin: OriginServers) -> None:
    client.ensure_sandbox("changed")
    fetch = f"curl -sS -o /dev/null -w '%{{http_code}}' https://other.test:{origin.port}/echo; true"
    assert run(client, "changed", fetch) == "000"
    view = client.update_sandbox("changed", network={"allow": [allowed("other.test", origin.port)]})
    assert view.network != "none"
    assert run(client, "changed", fetch) == "200"
    client.update_sandbox("changed", network={"allow": ["example.org"]})
    assert run(client, "changed", fetch) == "000"
    client.update_sandbox("changed", network={"allow": [allowed("other.test", origin.port)]})
    process = client.start_process("changed", f"curl -sSN https://other.test:{origin.port}/echo/slow").id
    client.update_sandbox("changed", network="none")
    assert client.get_sandbox("changed").network == "none"
    assert run(client, "changed", fetch) == "000"
    client.kill_process("changed", process)
    client.destroy_sandbox("changed")


def test_access_outlives_hibernation_and_a_restarted_daemon(
    daemon: RunningDaemon, client: Client, origin: OriginServers
) -> None:
    network = {"allow": [allowed("other.test", origin.port)], "credentials": ["api"]}
    client.ensure_sandbox("kept", network=network)
    fetch = f"curl -sS -o /dev/null -w '%{{http_code}}' https://other.test:{origin.port}/echo"
    client.hibernate_sandbox("kept")
    assert run(client, "kept", fetch) == "200"
    waiting = "import sys; sys.stdin.readline(); import urllib.request as u; print(u.urlopen(sys.argv[1]).status)"
    python = ["python3", "-c", waiting, f"https://api.test:{origin.port}/echo"]
    process = client.start_process("kept", python).id
    daemon.kill()
    daemon.start(environment=environment_of(origin))
    with daemon.client() as client:
        assert run(client, "kept", fetch) == "200"
        # A process from before still trusts the daemon's certificates.
        client.write_process("kept", process, b"go\n")
        assert client.read_process("kept", process, wait_s=30).data == b"200\n"
        assert client.get_sandbox("kept").network != "none"
        client.destroy_sandbox("kept")


def test_a_tenant_cannot_exceed_its_bound(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"sandboxes of this tenant may reach pypi\.test"):
        client.ensure_sandbox("bounded", tenant="bounded", network={"allow": ["example.org"]})
    with pytest.raises(InvalidRequest, match="this tenant has no such credential"):
        client.ensure_sandbox("bounded", tenant="bounded", network={"credentials": ["api"]})


@pytest.mark.parametrize(
    "item",
    ["", "*", "*.org", "a b", "http://x", "x:0", "x:99999", "127.1", "preset:nothing", "user@x", "*.*.org", "x/y"],
)
def test_a_rule_that_makes_no_sense_changes_nothing(client: Client, item: str) -> None:
    with pytest.raises(InvalidRequest):
        client.ensure_sandbox("nonsense", network={"allow": [item]})
    assert "nonsense" not in [view.session for view in client.list_sandboxes()]


def test_a_credential_is_used_and_never_seen(client: Client, origin: OriginServers) -> None:
    client.ensure_sandbox("secret", network={"credentials": ["api"]})
    text = run(client, "secret", f"curl -sSf https://api.test:{origin.port}/echo?x=1 -H 'Authorization: mine'")
    assert origin.seen[-1].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in text, "the answer echoes the secret"
    assert json.loads(text)["headers"]["authorization"] == "Bearer " + "*" * len(SECRET)
    [record] = records(client, "secret")
    assert (record.method, record.path, record.status, record.credential) == ("GET", "/echo", 200, "api")
    client.destroy_sandbox("secret")


def test_a_credential_permits_only_its_methods_and_paths(client: Client, origin: OriginServers) -> None:
    client.ensure_sandbox("narrow", network={"credentials": ["narrow"]})
    base = f"https://sub.api.test:{origin.port}"
    assert "bot" not in run(client, "narrow", f"curl -sSf {base}/echo/acme/x")
    assert origin.seen[-1].headers["authorization"].startswith("Basic ")
    count = len(origin.seen)
    for attempt in (f"-X POST {base}/echo/acme/x", f"{base}/echo/other", f"--path-as-is {base}/echo/acme/../other"):
        assert "permits GET on /echo/acme/**" in run(client, "narrow", f"curl -sS {attempt}")
    assert len(origin.seen) == count
    assert [record.decision for record in records(client, "narrow")] == ["allowed", "denied", "denied", "denied"]
    client.destroy_sandbox("narrow")


def test_a_credential_used_a_thousand_times_is_found_nowhere(
    daemon: RunningDaemon, client: Client, origin: OriginServers
) -> None:
    client.ensure_sandbox("thousand", network={"credentials": ["api"]})
    loop = f"""
import http.client, os, ssl
connection = http.client.HTTPSConnection("127.0.0.1", 3128)
connection.set_tunnel("api.test", {origin.port})
kept = []
for number in range(1000):
    connection.request("GET", f"/echo/{{number}}", headers={{"Host": "api.test:{origin.port}"}})
    kept.append(connection.getresponse().read())
open("answers", "wb").write(b"".join(kept))
print(len(kept), flush=True)
import time; time.sleep(600)
"""
    client.write_file("thousand", "/workspace/loop.py", loop.encode())
    process = client.start_process("thousand", "python3 loop.py").id
    read = client.read_process("thousand", process, wait_s=60)
    while not read.data and read.process.running:
        read = client.read_process("thousand", process, wait_s=60)
    assert read.data == b"1000\n", read
    assert sum(1 for request in origin.seen if request.path.startswith("/echo/")) >= 1000
    needle = SECRET.encode()
    processes = _processes_of_container(client, "thousand")
    assert needle not in b"".join(map(_memory_of, processes))
    assert needle not in b"".join((process / "environ").read_bytes() for process in processes)
    assert [path for path in _files_of(processes[0] / "root") if needle in path.read_bytes()] == []
    assert needle not in client.read_file("thousand", "/workspace/answers")
    assert SECRET not in run(
        client,
        "thousand",
        "env; cat /run/sandboxd/ca.pem; find / -xdev -type f -newer loop.py 2>/dev/null | xargs cat 2>/dev/null; true",
    )
    assert SECRET not in daemon.log.read_text(errors="replace")
    assert SECRET not in client.metrics()
    assert SECRET not in "".join(event.model_dump_json() for event in client.events(0, follow=False))
    assert SECRET not in "".join(record.model_dump_json() for record in records(client, "thousand"))
    assert 'sandboxd_egress_connections_total{decision="allowed"}' in client.metrics()
    if daemon.settings["engine"] == "docker":
        assert SECRET not in daemon.docker("inspect", *daemon.containers())
    client.destroy_sandbox("thousand")


def _processes_of_container(client: Client, session: str) -> list[Path]:
    """Return the host's directories in /proc of every process of the sandbox, its runner included."""
    mark = Path(f"/proc/{_one_pid(client, session)}/ns/pid").readlink()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "ns/pid").readlink() == mark:
                found.append(process)
        except OSError:
            continue
    assert len(found) >= 2, "neither the runner nor the client was found"
    return found


def _files_of(root: Path) -> Iterator[Path]:
    """Yield the files below the directories of a sandbox that its processes or the daemon write."""
    for place in ("workspace", "tmp", "var/tmp", "run", "etc", "home", "dev/shm"):
        for path in (root / place).rglob("*"):
            try:
                if path.is_file() and not path.is_symlink():
                    yield path
            except OSError:
                continue


def _one_pid(client: Client, session: str) -> int:
    """Return the host's pid of a process in the sandbox."""
    tag = f"/tmp/pid-{os.getpid()}"
    process = client.start_process(session, ["python3", "-c", "import time; time.sleep(600)", tag])
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if tag.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                    return int(path.name)
            except OSError:
                continue
    raise AssertionError(f"cannot find {process.id}")


def _memory_of(process: Path) -> bytes:
    found = []
    with open(process / "mem", "rb", 0) as memory:
        for line in (process / "maps").read_text().splitlines():
            span, mode = line.split()[:2]
            if mode.startswith("rw"):
                start, end = (int(part, 16) for part in span.split("-"))
                try:
                    memory.seek(start)
                    found.append(memory.read(end - start))
                except (OSError, OverflowError):
                    continue
    return b"".join(found)
