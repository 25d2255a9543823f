"""The marker of a reset in the kernel log: made, read, and told from anything else."""

import os

import pytest

from gpu_runbooks.activities.kernel_log.marker import Marker, Phase, marker_line, read_marker
from gpu_runbooks.workers.node_agent.kernel_log_writer import write_lines

MARKER = Marker(Phase.BEFORE, "node/prod/ip-10-0-0-1", "GPU-3f", "0000:53:00")


def test_the_line_is_readable_by_a_person_too():
    assert marker_line(MARKER) == (
        "gpu-runbooks: reset phase=before incident=node/prod/ip-10-0-0-1 gpu=GPU-3f pci=0000:53:00"
    )


@pytest.mark.parametrize(
    "marker",
    [
        MARKER,
        Marker(Phase.AFTER, "node/a b=c/n\n1%", None, "0000:53:00"),
        Marker(Phase.AFTER, "node/ü/n", "GPU-3f", None),
    ],
)
def test_what_is_written_is_read(marker):
    assert read_marker(marker_line(marker)) == marker
    assert "\n" not in marker_line(marker)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid (PCI:0000:53:00): 45, pid=4711",
        "gpu-runbooks: reset",
        "gpu-runbooks: reset phase=during incident=node/a/b gpu=GPU-3f",
        "gpu-runbooks: reset phase=before gpu=GPU-3f",
        "gpu-runbooks: resetting phase=before incident=node/a/b",
        f"somebody says: {marker_line(MARKER)}",
    ],
)
def test_anything_else_is_no_marker(text):
    assert read_marker(text) is None


def test_lines_are_added_to_the_log_and_never_make_one(kernel_log):
    assert write_lines(kernel_log, [marker_line(MARKER)] * 2) == ""
    assert kernel_log.read_text().splitlines() == [f"<5>{marker_line(MARKER)}"] * 2
    kernel_log.unlink()
    assert "No such file" in write_lines(kernel_log, ["line"])
    assert not kernel_log.exists()


def test_a_log_that_takes_nothing_is_told(kernel_log, tmp_path):
    kernel_log.unlink()
    os.mkfifo(kernel_log)  # nobody reads it: opening must not block
    assert "no marker of this reset" in write_lines(kernel_log, ["line"])
    assert "no marker of this reset" in write_lines(tmp_path, ["line"])
    assert "bytes long" in write_lines(kernel_log, ["x" * 2000])
