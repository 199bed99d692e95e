"""Records of bubblewrap containers, and how a process is distinguished from a later one with the same pid."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.engine.bubblewrap import processes, records
from sandboxd.engine.bubblewrap.processes import ProcessRef
from sandboxd.engine.bubblewrap.records import ContainerRecord, InitStatus, Records


@pytest.fixture
def kept(tmp_path: Path) -> Records:
    kept = Records(tmp_path / "state")
    kept.open()
    return kept


def make_record(name: str = "one") -> ContainerRecord:
    return ContainerRecord(records.mint_id(name), name, "host", {"a": "b"}, boot_id="boot", has_cgroup=True)


def test_record_is_read_back_as_it_was_written(kept: Records) -> None:
    record = replace(make_record(), monitor=ProcessRef(10, 20), init=ProcessRef(11, 21))
    kept.create(record)
    assert kept.read("one") == record
    assert kept.read_all() == [record]


def test_second_container_with_the_same_name_is_refused_and_the_first_stays(kept: Records, tmp_path: Path) -> None:
    first = make_record()
    kept.create(first)
    with pytest.raises(FileExistsError):
        kept.create(make_record())
    assert kept.read("one") == first
    assert os.listdir(tmp_path / "state") == ["one"]


def test_draft_of_a_dead_daemon_is_removed(kept: Records, tmp_path: Path) -> None:
    draft = tmp_path / "state" / ".new-0123"
    draft.mkdir()
    (draft / "record").write_text("{")
    kept.open()
    assert os.listdir(tmp_path / "state") == []


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"id": "x"}', "null"])
def test_record_left_incomplete_by_a_host_crash_is_removed(kept: Records, tmp_path: Path, torn: str) -> None:
    whole = make_record("whole")
    kept.create(whole)
    kept.create(make_record("torn"))
    (tmp_path / "state" / "torn" / "record").write_text(torn)
    kept.open()
    assert kept.read_all() == [whole]


def test_record_of_a_newer_version_is_still_read(kept: Records, tmp_path: Path) -> None:
    record = make_record()
    kept.create(record)
    file = tmp_path / "state" / "one" / "record"
    file.write_text(json.dumps({**json.loads(file.read_text()), "added": 1}))
    assert kept.read("one") == record


def test_deleting_twice_is_not_an_error(kept: Records) -> None:
    kept.create(make_record())
    kept.delete("one")
    kept.delete("one")
    assert kept.read("one") is None


@pytest.mark.parametrize("foreign", ["", "-", "../x-1", "a/b-1", "noname", "-0123", ".hidden-1", "x\n-1"])
def test_foreign_id_matches_no_container(foreign: str) -> None:
    assert records.name_of(foreign) is None


def test_id_contains_the_name_even_with_dashes() -> None:
    assert records.name_of(records.mint_id("a-b-c")) == "a-b-c"


def test_incomplete_status_is_read_up_to_its_last_whole_document() -> None:
    whole = '{ "child-pid": 7, "net-namespace": 1 }\n'
    assert records.parse_status("") == InitStatus()
    assert records.parse_status(whole[:10]) == InitStatus()
    assert records.parse_status(whole) == InitStatus(init_pid=7)
    assert records.parse_status(whole + '{ "exit-c') == InitStatus(init_pid=7)
    assert records.parse_status(whole + '{ "exit-code": 3 }\n') == InitStatus(init_pid=7, exit_code=3)


def test_program_name_with_brackets_and_blanks_does_not_shift_the_fields() -> None:
    fields = ["S", *map(str, range(4, 53))]
    stat = processes.parse_stat(f"42 (a) b (c) {' '.join(fields)}\n")
    assert stat.ref == ProcessRef(42, 22)
    assert stat.program == "a) b (c"
    assert stat.cpu_ticks == 14 + 15


def test_process_with_a_different_start_time_is_a_different_process() -> None:
    stat = processes.read_stat(os.getpid())
    assert stat is not None
    assert processes.is_alive(stat.ref)
    later = replace(stat.ref, start_ticks=stat.ref.start_ticks + 1)
    assert not processes.is_alive(later)
    assert processes.open_pidfd(later) is None
    processes.kill(later)  # would kill this test process if it checked only the pid
