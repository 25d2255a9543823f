"""The benchmark of the drain on a small scale: complete figures of real drains. Nothing is timed here."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from testbed.bench_drain import Bench, Plan, bench_drain
from testbed.bench_drains import DrainFailedError
from testbed.progress import Progress

DEPLOY = Path(__file__).parents[2] / "deploy"

SMALL = Plan(compared=(6,), reference=6, rounds=1, slow={0: 1, 1: 2}, nodes=2, pods_each=3)


@pytest.fixture
async def bench(tmp_path):
    async with Bench.start(tmp_path, Progress()) as started:
        yield started


async def test_both_drain_and_every_figure_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "figures.json"
    assert await bench_drain(file, SMALL) == 0
    figures = json.loads(file.read_text())
    assert set(figures) == {
        *("kubectl_seconds_6", "ours_seconds_6", "ratio_6"),
        *("requests_per_pod_kubectl", "requests_per_pod_ours"),
        *("slow_pods_seconds", "slowest_pod_seconds", "slowest_pod_ratio"),
        *("fifty_nodes_seconds", "load_before"),
    }
    # one eviction for each pod at least; kubectl looks at each pod once more
    assert figures["requests_per_pod_ours"] >= 1
    assert figures["requests_per_pod_kubectl"] >= 2
    assert figures["slowest_pod_ratio"] > 0
    out, err = capsys.readouterr()
    assert re.search(r"^ *6( +[\d.]+){5}$", out, re.MULTILINE)
    assert "3 pods" in out
    assert "2 nodes of 3 pods at once" in out
    assert "6 pods, kubectl" in err
    assert list(tmp_path.iterdir()) == [file]


async def test_a_drain_that_empties_no_node_is_a_failure(bench):
    with pytest.raises(DrainFailedError, match="bench-901"):
        await bench.ours.drain("bench-901")  # there is no such node
    with pytest.raises(DrainFailedError, match="bench-901"):
        await bench.kubectl.drain("bench-901")


async def test_ctrl_c_leaves_nothing_behind(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "testbed", "bench-drain", "--json", str(tmp_path / "figures.json")),
        env={**os.environ, "PYTHONPATH": str(DEPLOY), "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        while b"30 pods, kubectl" not in await process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 128 + signal.SIGINT
    assert list(tmp_path.iterdir()) == []
    assert processes_that_mention(tmp_path) == []


def processes_that_mention(directory):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if str(directory).encode() in command:
            found.append(command)
    return found
