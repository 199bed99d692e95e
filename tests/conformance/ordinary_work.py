"""Typical agent work, as a script that runs inside a container: standard library and common tools only.

Its arguments are a writable directory and, to run only a part, the names of the parts. It prints "all done", or what
failed.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import resource
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def threads() -> None:
    seen: list[int] = []
    workers = [threading.Thread(target=seen.append, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(seen) == list(range(8))


def processes() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
    lock = multiprocessing.get_context("fork").Lock()
    with lock:
        pass


def event_loop() -> None:
    reader, writer = socket.socketpair()
    poller = select.epoll()
    poller.register(reader, select.EPOLLIN)
    writer.send(b"x")
    assert poller.poll(10)
    if hasattr(os, "eventfd"):
        counter = os.eventfd(1)
        assert os.eventfd_read(counter) == 1
    memory = os.memfd_create("work")
    os.truncate(memory, 4096)
    with mmap.mmap(memory, 4096) as page:
        page[:3] = b"abc"
    for item in (reader, writer, poller):
        item.close()
    os.close(memory)


def process_descriptors() -> None:
    if hasattr(os, "pidfd_open"):
        os.close(os.pidfd_open(os.getpid()))


def local_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        client.sendall(b"hello")
        assert accepted.recv(5) == b"hello"
        accepted.close()
    assert socket.if_nameindex()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        datagram.bind(("127.0.0.1", 0))
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM):
        pass


def files() -> None:
    with open("a", "wb") as file:
        file.write(os.urandom(1 << 16))
        file.flush()
        os.posix_fallocate(file.fileno(), 0, 1 << 17)
        os.fsync(file.fileno())
    shutil.copy2("a", "b")
    os.link("a", "c")
    os.symlink("a", "d")
    os.mkfifo("e")
    os.replace("b", "a")
    os.utime("a")
    os.chmod("a", 0o600)
    assert os.access("a", os.R_OK)
    assert run("stat", "-c", "%h", "c").strip() == "1"
    with sqlite3.connect("db.sqlite") as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table t(x)")
        database.execute("insert into t values (1)")
    database.close()


def system_calls() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # close_range and openat2 and faccessat2 and futex_waitv and landlock_create_ruleset: a refusal would be EPERM.
    for number in (436, 437, 439, 449, 444):
        ctypes.set_errno(0)
        libc.syscall(number, -1, -1, -1, -1, -1, -1)
        assert ctypes.get_errno() != 1, number
    resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    reschedule_a_thread()
    os.nice(1)
    signal.setitimer(signal.ITIMER_REAL, 0)


def reschedule_a_thread() -> None:
    """Set the policy of a thread by its id, as pthread_setschedparam does; ids below 16 are left to the runner."""
    errors: list[OSError] = []

    def reschedule() -> None:
        try:
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_OTHER, os.sched_param(0))
        except OSError as error:
            errors.append(error)

    for _ in range(16):
        thread = threading.Thread(target=reschedule)
        thread.start()
        thread.join()
    assert (thread.native_id or 0) >= 16
    assert len(errors) < 16, errors


def terminal() -> None:
    master, slave = os.openpty()
    done = subprocess.run(["stty", "size"], stdin=slave, capture_output=True, timeout=10)
    assert done.returncode == 0, done.stderr
    os.close(master)
    os.close(slave)


def version_control() -> None:
    if shutil.which("git") is None:
        return
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*")
    run("git", "init", "-q", "repo")
    run("sh", "-c", "echo text > repo/file")
    run("git", *identity, "-C", "repo", "add", ".")
    run("git", *identity, "-C", "repo", "commit", "-q", "-m", "first")
    run("git", *identity, "-C", "repo", "gc", "-q")
    assert "first" in run("git", *identity, "-C", "repo", "log", "--oneline")


def build() -> None:
    with open("program.c", "w") as file:
        file.write('#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n')
    if shutil.which("cc"):
        run("cc", "-O2", "-pipe", "-pthread", "-o", "program", "program.c")
        assert run("./program") == "built\n"
    run(sys.executable, "-m", "venv", "--without-pip", "--copies", "env")
    assert run("env/bin/python", "-c", "import ssl; print('venv')") == "venv\n"
    run("sh", "-c", "tar cf - program.c | gzip | gunzip | tar tf - | sort | xargs ls")
    for program in ("node", "rg", "jq", "perl"):
        if shutil.which(program):
            run(program, "--version")
    if shutil.which("node"):
        run("node", "-e", "require('fs').promises.readFile('program.c').then(x => console.log(x.length))")


STEPS = (threads, processes, event_loop, local_network, files, system_calls, terminal, version_control, build)


def main() -> None:
    os.chdir(sys.argv[1])
    for step in [globals()[name] for name in sys.argv[2:]] or STEPS:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - told to the reader of the output
            sys.exit(f"cannot do {step.__name__}: {type(error).__name__}: {error}")
    print("all done")


if __name__ == "__main__":
    main()
