"""The demonstration on a small data set: it must tell the truth, and leave nothing behind."""

import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
from conftest import REPOSITORY, binary

pytest.importorskip("numpy")
pytest.importorskip("matplotlib")

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_SKIP_FUSE") == "1" or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="the slow PFS needs /dev/fuse, and FOREBAY_SKIP_FUSE=1 leaves it out",
)


@pytest.fixture
def texts(tmp_path):
    words = "mutex scheduler interrupt allocation_failed descriptor register_device".split()
    dice = random.Random(1)
    directory = tmp_path / "texts"
    directory.mkdir()
    for i in range(4):
        text = "".join(dice.choice(words) + dice.choice(" \n\t_0") for _ in range(250_000))
        (directory / f"{i}.txt").write_text(text)
    return directory


def start(texts, output, *options):
    command = [sys.executable, str(REPOSITORY / "python/demo"), "--only", "analysis", "--data", str(texts), "--output", str(output), *options]
    environment = {**os.environ, "FOREBAY_BIN": os.path.abspath(binary()), "FOREBAY_EXPERIMENT_READY": "1", "TMPDIR": str(output.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=ignore_ctrl_c)


def ignore_ctrl_c():
    """As a shell does for what it starts in the background: the demonstration has to end by Ctrl-C all the same."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def left_behind(output):
    """Mounts and processes of a demonstration whose temporary files were beside `output`."""
    place = str(output.parent / "forebay-demo-")
    with open("/proc/self/mountinfo") as mountinfo:
        left = [line for line in mountinfo if place in line]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as cmdline:
                left += [pid] if place in cmdline.read() else []
        except OSError:
            pass
    return left + list(output.parent.glob("forebay-demo-*"))


def test_a_small_demonstration(texts, tmp_path):
    output = tmp_path / "out"
    demo = start(texts, output, "--passes", "3")
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, out + err
    figures = json.loads((output / "demo.json").read_text())
    total = sum(path.stat().st_size for path in texts.iterdir())
    straight, cached = figures["runs"]["straight"], figures["runs"]["forebay"]
    # That which does not depend on the machine's speed: who served which byte how often.
    assert figures["bytes"] == total
    assert straight["served_bytes"] >= 3 * total * 0.99
    assert total * 0.99 <= cached["served_bytes"] <= total * 1.05
    assert [one["name"] for one in cached["passes"]] == ["vocabulary", "tf-idf", "k-means 1"]
    assert sum(figures["result"]["cluster_blocks"]) == figures["result"]["blocks"]
    counts = figures["result"]["term_counts"]
    text = b"".join(path.read_bytes() for path in texts.iterdir())
    assert counts and all(text.count(term.encode()) == n for term, n in counts.items())
    assert (output / "throughput.png").stat().st_size > 10_000 and (output / "throughput.svg").exists()
    assert left_behind(output) == []


@pytest.mark.parametrize("stage", ["straight from the PFS ...", "through Forebay ..."])
def test_stopped_half_way_it_leaves_nothing_behind(texts, tmp_path, stage):
    output = tmp_path / "out"
    demo = start(texts, output, "--passes", "40")
    watchdog = threading.Timer(60, demo.kill)
    watchdog.start()
    assert any(line.strip() == stage for line in demo.stdout), demo.stderr.read()
    assert left_behind(output), "it must be under way when it is stopped"
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate()
    watchdog.cancel()
    assert demo.returncode == 130 and "stopped" in err
    assert left_behind(output) == []
