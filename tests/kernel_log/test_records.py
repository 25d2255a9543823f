"""Each form in which a record of the kernel log reaches us, and who may have written it."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpu_runbooks.activities.kernel_log import Kind, Parser, parse

XID = "NVRM: Xid (PCI:0000:1b:00): 31, pid=9, name=a, Ch 00000001"
NEAR = datetime(2026, 3, 2, tzinfo=UTC)
TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
PART = TEN.replace(microsecond=211323)


def events(*lines, **known):
    return list(parse(lines, **{"near": NEAR, "boot_id": "boot", **known}))


@pytest.mark.parametrize(
    ("before", "uptime", "time"),
    [
        ("", None, None),
        ("3,1234,98765432,-;", 98.765432, None),
        ("3,1234,98765432,-,caller=T77;", 98.765432, None),
        ("6,1,0,c;", 0.0, None),
        ("[100.1] ", 100.1, None),
        ("[    0.000001] ", 0.000001, None),
        ("[111111111.111] ", 111111111.111, None),
        ("[  100.100000][ T1234] ", 100.1, None),
        ("[  100.100000] [ T1234] ", 100.1, None),
        ("<3>[  100.100000] [    C0] ", 100.1, None),
        ("[  100.100000][    C0] ", 100.1, None),
        ("[  100.100000 <    0.000012>] ", 100.1, None),
        ("[...] ", None, None),
        ("[  +0.000012] ", None, None),
        ("[<    0.000012>] ", None, None),
        ("[Mar 1 10:00] ", None, None),
        ("[Sun Mar  1 10:00:00 2026] ", None, TEN),
        ("<3>[  100.100000] ", 100.1, None),
        ("<3>", None, None),
        ("kern  :err   : [  100.100000] ", 100.1, None),
        ("kern  :err   : [Sun Mar  1 10:00:00 2026] ", None, TEN),
        ("kern  :err   : 2026-03-01T10:00:00,211323+00:00 ", None, PART),
        ("2026-03-01T10:00:00,211323+00:00 ", None, PART),
        ("2026-03-01T12:00:00,211323+02:00 ", None, PART),
        ("kernel: ", None, None),
        ("kernel: [  100.100000] ", 100.1, None),
        ("Mar  1 10:00:00 gpu-a1 kernel: ", None, TEN),
        ("Mar 01 10:00:00 gpu-a1 kernel: ", None, TEN),
        ("Mar  1 10:00:00 gpu-a1 kernel: [  100.100000] ", 100.1, TEN),
        ("Mar  1 10:00:00 gpu-a1 kernel: [  100.100000][ T9] ", 100.1, TEN),
        ("Mar  1 10:00:00.211323 gpu-a1 kernel: ", None, PART),
        ("<3>Mar  1 10:00:00 gpu-a1 kernel: ", None, TEN),
        ("Mar  1 10:00:00 gpu-a1 kern.err kernel: [  100.100000] ", 100.1, TEN),
        ("Mar  1 10:00:00 fe80::1 kernel: ", None, TEN),
        ("2026-03-01T10:00:00.211323+00:00 gpu-a1 kernel: ", None, PART),
        ("2026-03-01T10:00:00.211323Z gpu-a1 kernel: [  100.100000] ", 100.1, PART),
        ("2026-03-01T10:00:00+0000 gpu-a1 kernel: ", None, TEN),
        ("2026-03-01 10:00:00 gpu-a1 kernel: ", None, TEN),
        ("Sun 2026-03-01 10:00:00 UTC gpu-a1 kernel: ", None, TEN),
        ("1772359200.211323 gpu-a1 kernel: ", None, PART),
        ("[  100.100000] gpu-a1 kernel: ", 100.1, None),
        ("<3>1 2026-03-01T10:00:00.211323Z gpu-a1 kernel - - - ", None, PART),
        ("<3>1 2026-03-01T10:00:00.211323Z gpu-a1 kernel - - - [  100.100000] ", 100.1, PART),
        ('<6>1 2026-03-01T10:00:00.211323Z gpu-a1 kernel - - [timeQuality a="b\\]" c="d"] ', None, PART),
        ("1 2026-03-01T10:00:00.211323Z gpu-a1 kernel - - - ", None, PART),
    ],
)
@pytest.mark.parametrize("form", [str, str.encode])
def test_a_record_of_the_kernel(before, uptime, time, form):
    (event,) = events(form(before + XID))
    assert (event.kind, event.code, event.pci) == (Kind.XID, "31", "0000:1b:00")
    assert (event.uptime, event.time) == (uptime, time)


@pytest.mark.parametrize(
    "before",
    [
        "11,5002,100000500,-;",
        "12,5003,100000900,-;train.py: ",
        "13,1,1,-;",
        "4294967291,1,1,-;",
        "3,5004,100001000,-;bash[77]: echoed ",
        "3,5004,100001000,-;[ 12.5] ",
        "3,1,1,-;kernel: ",
        "3,1,1,-; ",
        "3,x,1,-;",
        "-3,1,1,-;",
        "x3,1,1,-;",
        "3,1,1,-",
        "<11>",
        "<11>[  100.100000] ",
        "<13>Mar  1 10:00:00 gpu-a1 kernel: ",
        "<13>1 2026-03-01T10:00:00.211323Z gpu-a1 kernel - - - ",
        "<3>1 2026-03-01T10:00:00.211323Z gpu-a1 python - - - ",
        "<3>1 2026-03-01T10:00:00.211323Z gpu-a1 kernel 4711 - - ",
        "user  :notice: [  100.100000] ",
        "daemon:err   : [  100.100000] ",
        "Mar  1 10:00:00 gpu-a1 python[77]: ",
        "Mar  1 10:00:00 gpu-a1 kernel[77]: ",
        "Mar  1 10:00:00 gpu-a1 user.err kernel: ",
        "Mar  1 10:00:00 gpu-a1 bash: kernel: ",
        "Mar  1 10:00:00 gpu-a1 kernel: bash: ",
        "Mar  1 10:00:00 gpu-a1 ",
        "Mar  1 10:00:00 ",
        "2026-03-01T10:00:00.211323+00:00 gpu-a1 python: ",
        "2026-03-01T10:00:00.211323+00:00 gpu-a1 ",
        "[  100.100000] bash[7]: ",
        "[evil] ",
        "[  100.100000] [evil] ",
        " ",
        "\t",
        "\x00",
    ],
)
def test_what_is_not_the_kernels_or_does_not_begin_so_is_nothing(before):
    assert events(before + XID) == []


def entry(**fields):
    whole = {
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": "3",
        "MESSAGE": XID,
        "__REALTIME_TIMESTAMP": "1772359200211323",
        "_SOURCE_MONOTONIC_TIMESTAMP": "100100000",
        "_BOOT_ID": "b00t",
        **fields,
    }
    return json.dumps({name: value for name, value in whole.items() if value is not ...})


@pytest.mark.parametrize(
    "line",
    [
        entry(),
        entry(MESSAGE=list(XID.encode())),
        entry(MESSAGE=list(XID.encode() + b"\xff\x00")),
        entry(SYSLOG_FACILITY=...),
        entry(SYSLOG_IDENTIFIER=...),
        entry(SYSLOG_FACILITY=0),
    ],
)
def test_an_entry_of_the_journal(line):
    (event,) = events(line)
    assert (event.code, event.pci, event.boot_id) == ("31", "0000:1b:00", "b00t")
    assert (event.time, event.uptime, event.sequence) == (PART, 100.1, None)
    assert event.identity.startswith("b00t/")


@pytest.mark.parametrize(
    "line",
    [
        entry(_TRANSPORT="syslog"),
        entry(_TRANSPORT="stdout"),
        entry(_TRANSPORT=...),
        entry(_TRANSPORT=["kernel", "stdout"]),
        entry(SYSLOG_FACILITY="1"),
        entry(SYSLOG_FACILITY="x"),
        entry(SYSLOG_FACILITY=["0", "1"]),
        entry(SYSLOG_IDENTIFIER="python"),
        entry(MESSAGE=None),
        entry(MESSAGE=7),
        entry(MESSAGE=[78, 999]),
        entry(MESSAGE=["NVRM"]),
        entry(MESSAGE=["N", "NVRM: "]),
        entry(MESSAGE={"NVRM": XID}),
        entry(MESSAGE=f"bash[7]: {XID}"),
        json.dumps([XID]),
        json.dumps(XID),
        f'{{"MESSAGE": "{XID}"',
        '{"NVRM":' + "[" * 100_000,
        '{"NVRM":' + "9" * 10_000 + "}",
        "{" + XID,
    ],
)
def test_an_entry_that_is_not_the_kernels_or_no_entry_is_nothing(line):
    assert events(line) == []


@pytest.mark.parametrize(
    ("fields", "uptime", "time"),
    [
        ({"__REALTIME_TIMESTAMP": ..., "_SOURCE_MONOTONIC_TIMESTAMP": ...}, None, None),
        ({"__REALTIME_TIMESTAMP": "9" * 19}, 100.1, None),
        ({"__REALTIME_TIMESTAMP": "-5", "_SOURCE_MONOTONIC_TIMESTAMP": "soon"}, None, None),
        ({"__REALTIME_TIMESTAMP": 1772359200211323}, 100.1, PART),
    ],
)
def test_an_entry_with_times_that_say_nothing_is_kept(fields, uptime, time):
    (event,) = events(entry(**fields))
    assert (event.uptime, event.time) == (uptime, time)


def test_lines_about_the_device_are_no_text():
    lines = [f"3,1,1000000,-;{XID}", " SUBSYSTEM=pci", f" {XID}", " DEVICE=+pci:0000:1b:00.0", f"\t{XID}"]
    assert len(events(*lines)) == len(events("\n".join(lines) + "\n")) == 1


def test_what_the_kernel_escaped_is_read_and_shown_plain():
    (event,) = events(rf"3,1,1,-;{XID}\x09and \xe2\x82\xac and \x5cx41 \x1b[2J")
    assert event.text == r"Ch 00000001?and ? and \x41 ?[2J"


def test_a_line_within_a_record_is_no_record():
    """A process can put a line end into its name, and the kernel writes it as it is."""
    assert events(rf"3,1,1,-;x\x0a{XID}", entry(MESSAGE=f"x\n{XID}")) == []


def test_uptime_becomes_time_by_the_moment_of_the_boot():
    boot = datetime(2026, 3, 1, 11, 58, 20, tzinfo=timezone(timedelta(hours=2)))
    (event,) = events(f"3,1,100211323,-;{XID}", boot_time=boot)
    assert event.time == PART
    (event,) = events(f"3,1,{'9' * 19},-;{XID}", boot_time=boot)
    assert event.time is None


@pytest.mark.parametrize(
    ("near", "stamp", "time"),
    [
        (
            datetime(2026, 1, 1, 0, 30, tzinfo=UTC),
            "Dec 31 23:59:00",
            datetime(2025, 12, 31, 23, 59, tzinfo=UTC),
        ),
        (datetime(2026, 12, 31, tzinfo=UTC), "Dec 31 23:59:00", datetime(2026, 12, 31, 23, 59, tzinfo=UTC)),
        (datetime(2024, 3, 1, tzinfo=UTC), "Feb 29 10:00:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        (datetime(2027, 3, 1, tzinfo=UTC), "Feb 29 10:00:00", None),
        (NEAR, "Feb 30 10:00:00", None),
        (NEAR, "Mar  1 10:61:00", None),
        (datetime(2026, 3, 2, tzinfo=timezone(timedelta(hours=-5))), "Mar  1 05:00:00", TEN),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "Mar  1 05:00:00", None),
        (None, "Mar  1 10:00:00", None),
    ],
)
def test_syslog_names_neither_year_nor_zone(near, stamp, time):
    (event,) = events(f"{stamp} gpu-a1 kernel: {XID}", near=near)
    assert event.time == time


def test_the_same_record_is_told_once_however_often_it_is_read():
    line = f"3,4611,4071000000,-;{XID}"
    ring = [line, " SUBSYSTEM=pci", "6,4612,4071000900,c;partial", "6,4613,4071001000,-;usb 1-1: demo"]
    parser = Parser(boot_id="boot")
    assert [event.identity for read in range(3) for each in ring for event in parser.feed(each)] == [
        "boot/4611"
    ]
    assert parser.window.complete


def test_another_reader_gives_the_same_record_the_same_identity():
    for line in (f"3,4611,4071000000,-;{XID}", f"[ 4071.0] {XID}", f"Mar  1 10:00:00 a kernel: {XID}", XID):
        assert events(line)[0].identity == events("6,4610,1,-;other", line)[0].identity
    assert (
        events(f"[ 4071.000000] {XID}")[0].identity
        == events(f"Mar  1 10:00:00 a kernel: [4071.0] {XID}")[0].identity
    )


def test_the_same_line_later_is_another_event():
    assert len(events(f"3,4611,4071000000,-;{XID}", f"3,4612,4071000000,-;{XID}")) == 2
    assert len(events(f"[ 4071.0] {XID}", f"[ 4072.0] {XID}")) == 2
    assert len(events(entry(), entry(_BOOT_ID="next"))) == 2


def test_a_reader_that_goes_on_tells_only_what_is_new():
    uuid = "GPU-11112222-3333-4444-5555-666677778888"
    parser = Parser(boot_id="boot", after=12)
    ring = [
        f"6,11,1,-;NVRM: GPU at PCI:0000:1b:00: {uuid}",
        f"3,12,2,-;{XID}",
        f"3,13,3,-;{XID}",
    ]
    told = [event for line in ring for event in parser.feed(line)]
    assert [(event.sequence, event.uuid) for event in told] == [(13, uuid)]


def test_a_new_boot_forgets_what_the_old_one_said():
    uuid = "GPU-11112222-3333-4444-5555-666677778888"
    told = events(
        entry(MESSAGE=f"NVRM: GPU at PCI:0000:1b:00: {uuid}"),
        entry(),
        entry(_BOOT_ID="next", _SOURCE_MONOTONIC_TIMESTAMP="5"),
    )
    assert [(event.boot_id, event.uuid) for event in told] == [("b00t", uuid), ("next", None)]
