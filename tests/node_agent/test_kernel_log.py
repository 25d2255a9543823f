"""The kernel log of the evidence: what is kept of it, in which form, and what is said about the rest."""

import os
import threading
from datetime import UTC, datetime

import pytest

from gpu_runbooks.workers.node_agent.kernel_log import LIMIT, WINDOW_MINUTES, read_kernel_log

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
UPTIME = 100_000.0
XID = "NVRM: Xid (PCI:0000:9b:00): 119, pid=20002, name=cache_mgr_main, Timeout after 45s"


def record(text, seconds_ago=60.0, priority=6, sequence=1):
    return f"{priority},{sequence},{int((UPTIME - seconds_ago) * 1_000_000)},-;{text}\n"


@pytest.fixture
def log(tmp_path):
    """Writes a log and reads it as evidence."""
    path = tmp_path / "kmsg"

    def read(*lines):
        path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
        part = read_kernel_log(path, uptime=UPTIME, now=NOW)
        assert len(part.text.encode()) <= LIMIT
        assert len(part.note) <= 500
        return part

    return read


def test_records_stay_as_the_kernel_gave_them(log):
    lines = [
        record(XID, priority=3, sequence=4611),
        " SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0\n",
        "4,4612,99950000900,c;partial line\n",
        record(r"tab\x09and \xe2\x82\xac as the kernel escapes them"),
    ]
    part = log(*lines)
    head, _, rest = part.text.partition("\n")
    assert head == "# 2026-03-01T12:00:00+00:00 is 100000000000 microseconds after boot"
    assert rest == "".join(lines)
    assert part.note == ""


def test_only_the_last_hours_are_kept(log):
    outside = WINDOW_MINUTES * 60 + 1
    part = log(record("old", outside), " SUBSYSTEM=old\n", record("new", outside - 2))
    assert "old" not in part.text
    assert "new" in part.text
    assert part.note == ""


def test_an_empty_log_is_complete(log):
    part = log()
    assert len(part.text.splitlines()) == 1
    assert part.note == ""


def test_of_a_long_log_the_relevant_and_the_newest_are_kept_in_order(log):
    noise = [record(f"usb 1-1: device {number}", 5000 - number / 100) for number in range(20_000)]
    efa = record("efa 0000:10:1b.0: device is not responding", 4990)
    part = log(record(XID, 5001, 3), efa, *noise)
    texts = [line.partition(";")[2] for line in part.text.splitlines()[1:]]
    assert texts[:2] == [XID, "efa 0000:10:1b.0: device is not responding"]
    assert texts[-1] == "usb 1-1: device 19999"
    assert texts[2:] == sorted(texts[2:], key=lambda text: int(text.rpartition(" ")[2]))
    assert f"{len(texts)} of the 20002 records" in part.note


def test_a_flood_of_one_fault_leaves_room_for_others(log):
    part = log(
        record("pcieport 0000:00:1e.0: AER: Corrected error", 900),
        *(record(f"NVRM: Xid (PCI:0000:9b:00): 31, pid={n}", 800, 3) for n in range(20_000)),
    )
    assert "AER: Corrected error" in part.text
    assert "pid=19999" in part.text
    assert "pid=0\n" not in part.text


@pytest.mark.parametrize(
    "private",
    [
        record("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.", 10, priority=11),
        record("cloud-init[901]: export TOKEN=s3cret", 10, priority=14),
        record("sh[7]: gpu-runbooks: --token s3cret", 10, priority=30),
        record('audit: type=1309 audit(1.2:3): argc=2 a0="login" a1="--token=s3cret" Xid', 10, priority=5),
    ],
)
def test_what_a_process_wrote_or_did_is_left_out_and_counted(log, private):
    """It may hold secrets, and it may be forged."""
    part = log(record(XID, 5000, 3), *[private] * 20_000)
    assert XID in part.text
    assert "s3cret" not in part.text
    assert "0000:2b:00" not in part.text
    assert part.note == "20000 records of processes and of the kernel's audit are left out"


def test_a_mark_of_ours_is_relevant_although_a_process_wrote_it(log):
    noise = [record(f"usb 1-1: device {number}", 50) for number in range(20_000)]
    mark = "gpu-runbooks: reset of all GPUs begins"
    assert mark in log(record(mark, 60, priority=12), *noise).text


def test_five_mebibytes_are_bounded_and_said_to_be_cut(log):
    noise = (record(f"noise {'x' * 200} {number}", 60) for number in range(24_000))
    part = log(*noise)
    assert "noise" in part.text
    assert part.text.endswith("23999\n")
    assert "not among the newest 4 MiB" in part.note
    assert "records of the last 360 minutes" in part.note


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x1b[2J\x1b]0;owned\x07 \x00\xff\xfe\r\n",
        b"\xff" * 100_000,
        b"x" * 5_000_000,
        b"\n" * 100_000,
        b";" * 100_000 + b"\n 1,2,3,-;\n",
        b"9" * 60 + b",1,1,-;not a header\n",
    ],
)
def test_whatever_is_in_it_the_text_is_plain_and_bounded(log, hostile):
    part = log(hostile, "\n", record(XID, 1, 3))
    assert part.text.isascii()
    assert not any(ord(character) < 32 and character not in "\t\n" for character in part.text)
    assert XID in part.text


OLD = record("old", WINDOW_MINUTES * 60 + 60, sequence=7)


@pytest.mark.parametrize(
    ("lines", "complete"),
    [
        ([OLD, record("new", sequence=8), record(XID, 3, sequence=9)], True),
        ([record("boot", sequence=0), record("new", sequence=1)], True),
        ([OLD], True),
        ([OLD, record("secret", 50, 14, 8), record("new", 40, sequence=9)], True),
        ([record("new", sequence=8)], False),
        ([], False),
        ([OLD, record("new", sequence=9)], False),
        ([OLD, record("nvidia_rm_log: 412 callbacks suppressed", sequence=8)], False),
    ],
)
def test_it_is_complete_only_where_nothing_of_the_window_can_be_missing(log, lines, complete):
    part = log(*lines)
    assert part.complete is complete


def test_what_is_missing_within_the_window_is_told(log):
    part = log(OLD, record("new", sequence=19))
    assert part.note == "records are missing: records 8 to 18 are missing"


def test_faults_that_do_not_fit_are_missing_as_well(log):
    lines = [record(XID + "x" * 100, 50, sequence=8 + number) for number in range(1000)]
    assert not log(OLD, *lines).complete
    noise = [record("usb" + "x" * 100, 50, sequence=8 + number) for number in range(1000)]
    assert log(OLD, *noise).complete


def test_a_gpu_that_fell_off_without_an_xid_ranks_as_a_fault(log):
    lost = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    others = [record(f"NVRM: demo {number} {'x' * 100}", 900) for number in range(2000)]
    assert lost in log(record(lost, 1000, 3), *others).text


def test_a_log_that_cannot_be_read_is_said_to_be(tmp_path):
    part = read_kernel_log(tmp_path / "nowhere", uptime=UPTIME, now=NOW)
    assert part.complete is False
    assert (part.text, part.note) == ("", f"{tmp_path}/nowhere cannot be read: No such file or directory")
    assert "Is a directory" in read_kernel_log(tmp_path, uptime=UPTIME, now=NOW).note


def test_a_device_that_has_nothing_more_to_say_is_not_waited_for(tmp_path):
    """As `/dev/kmsg` at its end: reading would block."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        os.write(writer, record(XID, 1, 3).encode())
        read = []
        reader = threading.Thread(
            target=lambda: read.append(read_kernel_log(pipe, uptime=UPTIME, now=NOW)), daemon=True
        )
        reader.start()
        reader.join(timeout=10)
        assert XID in read[0].text
    finally:
        os.close(writer)
