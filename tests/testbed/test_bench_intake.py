"""The benchmark of the intake on a small scale: complete figures, and limits that are judged."""

import json
import subprocess
import sys

import pytest

from testbed.bench_intake import LIMITS, bench_intake, duplicates


async def test_repeats_of_a_fault_add_few_events_to_a_real_incident():
    figures = await duplicates.measure(deliveries=120, faults=2)

    assert figures["events_added_by_120_duplicates"] <= 3 * 4
    assert figures["deliveries_counted"] >= 100


def test_every_figure_is_printed_with_its_limit_and_written(tmp_path, capsys):
    good = {name: limit.value for name, limit in LIMITS.items()}

    async def later():
        return {"watch_5000_nodes_rss_mib": 300.0}

    file = tmp_path / "figures.json"
    assert bench_intake(file, {"all": lambda: good, "watch": later}) == 0

    written = json.loads(file.read_text())
    assert set(written) == {*LIMITS, "load_before"}
    out, err = capsys.readouterr()
    for name, limit in LIMITS.items():
        assert f"{limit}" in next(line for line in out.splitlines() if line.startswith(name))
    assert "MISSED" not in out
    assert "all" in err


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("parse_lines_per_second", 199_999.0),
        ("diff_events_per_second", 4_999.0),
        ("watch_5000_nodes_rss_mib", 300.1),
        ("events_added_by_10000_duplicates", 101),
    ],
)
def test_a_limit_that_is_missed_is_a_failure(name, figure, capsys):
    assert bench_intake(None, {"one": lambda: {name: figure}}) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_told_before_minutes_are_spent(tmp_path):
    command = [
        sys.executable,
        "-m",
        "testbed",
        "bench-intake",
        "--json",
        str(tmp_path / "none" / "figures.json"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": "deploy"})
    assert (ended.returncode, "there is no folder" in ended.stderr) == (2, True)
