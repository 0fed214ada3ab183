"""Append mode: no byte of one appender is lost to another."""

import io
import subprocess
import sys

import pytest

import forebay

RECORDS = 400

# Each waits for the other to have its file open, so that both found the same end.
APPENDER = """
import sys, forebay
path, mode, name, records = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with forebay.open(path, mode) as file:
    print("open", flush=True)
    sys.stdin.readline()
    for i in range(records):
        line = f"{name} {i} " + name * (i % 300) + "\\n"
        file.write(line.encode() if "b" in mode else line)
        if i % 7 == 0:
            file.flush()
"""


@pytest.mark.parametrize("mode", ["ab", "at", "a", "a+", "a+b"])
def test_two_processes_append_and_no_record_is_lost_or_cut(agent, directory, mode):
    path = directory / "log"
    path.write_bytes(b"begun before\n")
    appenders = [_appender(path, mode, name) for name in "ab"]
    for appender in appenders:
        assert appender.stdout.readline() == "open\n"
    for appender in appenders:
        appender.stdin.write("go\n")
        appender.stdin.flush()
    for appender in appenders:
        _, errors = appender.communicate(timeout=60)
        assert appender.returncode == 0, errors
    lines = path.read_text().splitlines()
    assert lines[0] == "begun before" and len(lines) == 1 + 2 * RECORDS
    for name in "ab":
        mine = [line for line in lines if line.startswith(name + " ")]
        assert mine == [f"{name} {i} " + name * (i % 300) for i in range(RECORDS)]


def _appender(path, mode, name):
    command = [sys.executable, "-c", APPENDER, str(path), mode, name, str(RECORDS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_appender_that_seeks_still_writes_at_the_end(agent, directory):
    path = directory / "log"
    path.write_bytes(b"0123456789")
    with forebay.open(path, "ab") as file, open(path, "ab") as other:
        assert file.tell() == 10
        file.write(b"A")
        other.write(b"BB")
        other.flush()
        file.flush()
        assert file.seek(0, io.SEEK_END) == 13
        assert file.seek(0) == 0
        file.write(b"C")
    assert path.read_bytes() == b"0123456789BBAC"
