"""Lines without an Xid: NVSwitches, GPUs that are gone, network cards, NCCL, marks of ours."""

import json

import pytest

from gpu_runbooks.activities.kernel_log import Kind, Parser, parse
from gpu_runbooks.activities.kernel_log.marker import Marker, Phase, marker_line

SWITCH = "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): "


def told(*lines):
    return [(event.kind.value, event.code, event.pci) for event in parse(lines)]


@pytest.mark.parametrize(
    ("line", "code", "grade", "link"),
    [
        (f"{SWITCH}20034, Fatal, Link 09 demo fault", "20034", "fatal", 9),
        (f"{SWITCH}12028, Non-fatal, Link 32 demo (First)", "12028", "nonfatal", 32),
        (f"{SWITCH}10001, Fatal, demo unhandled interrupt", "10001", "fatal", None),
        (f"{SWITCH}10003, Non-fatal, demo", "10003", "nonfatal", None),
        (f"{SWITCH}22013, Nonfatal, Link 00", "22013", "nonfatal", 0),
        ("nvidia-nvswitch0 SXid (0000:87:00.0): 24007, Fatal, Link 30 demo", "24007", "fatal", 30),
    ],
)
def test_an_sxid(line, code, grade, link):
    (event,) = parse([line])
    found = event.finding
    assert (found.kind, found.code, found.grade, found.link) == (Kind.SXID, code, grade, link)
    assert (found.pci, found.device) == ("0000:87:00", line[:16])
    assert found.place == ("" if link is None else f"link {link}")


@pytest.mark.parametrize(
    "stamp", ["", "[  10.{n}00000] ", "Mar  1 10:00:0{n} a kernel: ", "3,{n},{n}000000,-;"]
)
def test_the_lines_of_one_fault_of_a_switch_are_one_event(stamp):
    lines = [
        f"{SWITCH}20034, Fatal, Link 09 demo fault",
        f"{SWITCH}20034, Severity 1 Engine instance 09 Sub-engine instance 00",
        f"{SWITCH}20034, Data {{0x00000000, 0x00000001}}",
        f"{SWITCH}20034, Fatal, Link 09 demo fault",
    ]
    stamped = [stamp.format(n=number) + line for number, line in enumerate(lines)]
    parser = Parser(boot_id="boot")
    events = [event for read in range(2) for line in stamped for event in parser.feed(line)]
    assert [event.finding.link for event in events] == [9]


def test_other_links_codes_and_switches_are_faults_of_their_own():
    lines = [
        f"{SWITCH}20034, Fatal, Link 09 demo",
        f"{SWITCH}20034, Fatal, Link 10 demo",
        f"{SWITCH}20034, Severity 1 Engine instance 10",
        f"{SWITCH}20035, Fatal, Link 09 demo",
        "nvidia-nvswitch3: SXid (PCI:0000:88:00.0): 20034, Fatal, Link 09 demo",
    ]
    assert [event.finding.link for event in parse(lines)] == [9, 10, 9, 9]


def test_the_same_fault_of_a_switch_later_is_another():
    lines = [f"[ {at}.0] {SWITCH}20034, Fatal, Link 09 demo" for at in (10, 12, 16, 100)]
    parser = Parser()
    events = [event for read in range(2) for line in lines for event in parser.feed(line)]
    assert [event.uptime for event in events] == [10, 16, 100]


def test_raw_data_without_its_headline_is_kept():
    lines = [f"[ 9.0] {SWITCH}20034, Severity 1 Engine instance 09", f"[ 9.1] {SWITCH}20034, Data {{0x0}}"]
    (event,) = parse(lines)
    assert (event.code, event.finding.grade, event.finding.link) == ("20034", "", None)


@pytest.mark.parametrize(
    "line",
    [
        f"{SWITCH}garbled, Fatal",
        f"{SWITCH}20034, hello",
        f"{SWITCH}20034",
        f"{SWITCH}0, Fatal, Link 09",
        "nvidia-nvswitch2: SXid (PCI:87:00.0): 20034, Fatal, Link 09",
        "nvidia-nvswitch: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 09",
        f"echo {SWITCH}20034, Fatal, Link 09",
        "fabric manager detected NVSwitch fatal error 20034 SXid",
    ],
)
def test_no_sxid(line):
    assert told(line) == []


LOST = ("xid", "79", "0000:b3:00")
PROBE = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b9) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize(
    "lines",
    [
        PROBE,
        [f"Mar 01 05:03:42 gpu-a1 kernel: {line}" for line in PROBE],
        [f"3,{number},1843100001,-;{line}" for number, line in enumerate(PROBE)],
        [r"3,7,1843100001,-;" + r"\x0a".join(PROBE)],
        [json.dumps({"_TRANSPORT": "kernel", "MESSAGE": "\n".join(PROBE)})],
        [f"[ 1843.100001] {PROBE[0]}", f"               {PROBE[1]}", f"               {PROBE[2]}"],
        [
            "\n".join(
                (f"[ 1843.100001] {PROBE[0]}", f"               {PROBE[1]}", f"               {PROBE[2]}")
            )
        ],
        [
            "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:1e07)",
            "NVRM: installed in this system has fallen off the bus and",
            "NVRM: is not responding to commands.",
        ],
        ["NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:1e07) has fallen off the bus and is gone"],
        ["NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."],
        ["NVRM: GPU at 0000:B3:00.0 has fallen off the bus."],
        ["NVRM: GPU at PCI:0000:b3:00: GPU has fallen off the bus."],
        ["NVRM: Xid (PCI:0000:b3:00): 79, pid=1122, GPU has fallen off the bus."],
    ],
)
def test_a_gpu_that_fell_off_the_bus(lines):
    assert told(*lines) == [LOST]


@pytest.mark.parametrize("stamp", ["", "[  10.{n}00000] ", "3,{n},{n}000000,-;"])
@pytest.mark.parametrize("turned", [False, True])
def test_all_forms_together_are_one_event_for_each_gpu(stamp, turned):
    forms = [
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=1122, GPU has fallen off the bus.",
        "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        *PROBE,
    ]
    both = (forms[2:] + forms[:2] if turned else forms) + [line.replace("b3", "b4") for line in forms]
    assert told(*(stamp.format(n=number) + line for number, line in enumerate(both))) == [
        LOST,
        ("xid", "79", "0000:b4:00"),
    ]


OTHERS = tuple(line.replace("b3", "b4") for line in PROBE)
BOTH = [LOST, ("xid", "79", "0000:b4:00")]


@pytest.mark.parametrize(
    "stamp", ["", "[  10.{n:06}] ", "3,{n},{n}000,-;", "Mar  1 10:00:00 gpu-a1 kernel: "]
)
@pytest.mark.parametrize("order", ["001122", "001212", "010122", "011022", "012012", "001221"])
def test_gpus_lost_at_probe_together_are_all_told(stamp, order):
    """Their lines mix: the digit is which of its three lines each of the GPUs logs next."""
    waiting = {part: [PROBE[part], OTHERS[part]] for part in range(3)}
    lines = [waiting[int(part)].pop(0) for part in order]
    parser = Parser()
    events = [
        event for number, line in enumerate(lines) for event in parser.feed(stamp.format(n=number) + line)
    ]
    assert [(event.kind.value, event.code, event.pci) for event in events] == BOTH
    assert parser.window.complete


def test_all_gpus_of_a_node_may_be_lost_at_probe_at_once():
    gpus = [f"0000:{bus:02x}:00" for bus in range(16)]
    lines = [line.replace("0000:b3:00", gpu) for line in PROBE for gpu in gpus]
    assert told(*lines) == [("xid", "79", gpu) for gpu in gpus]


def test_each_of_two_probed_gpus_has_its_own_end():
    unsupported = (
        "NVRM: (PCI ID: 10de:26b9) installed in this system is",
        "NVRM: not supported by the driver.",
    )
    for lines in (
        [PROBE[0], OTHERS[0], unsupported[0], OTHERS[1], unsupported[1], OTHERS[2]],
        [PROBE[0], OTHERS[0], unsupported[0], OTHERS[1], OTHERS[2], unsupported[1]],
        [PROBE[0], *unsupported, *OTHERS],
    ):
        assert told(*lines) == BOTH[1:]


def test_a_record_of_several_lines_is_about_its_own_gpu():
    parser = Parser()
    lines = [f"3,1,1,-;{PROBE[0]}", "3,2,2,-;" + r"\x0a".join(OTHERS)]
    assert [event.pci for line in lines for event in parser.feed(line)] == ["0000:b4:00"]
    assert not parser.window.complete


def test_an_xid_of_another_gpu_does_not_end_a_probe():
    xid = "NVRM: Xid (PCI:0000:b4:00): 79, pid=1122, GPU has fallen off the bus."
    assert told(PROBE[0], xid) == BOTH[1:]
    assert told(PROBE[0], xid, *PROBE[1:]) == BOTH[::-1]


def test_a_gpu_that_falls_off_again_later_is_another_event():
    line = "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."
    parser = Parser()
    lines = [f"[ {at}.0] {line}" for at in (10, 40, 71, 5000)]
    events = [event for read in range(2) for each in lines for event in parser.feed(each)]
    assert [event.uptime for event in events] == [10, 71, 5000]


def test_another_xid_of_the_same_gpu_is_not_hidden():
    head = "NVRM: Xid (PCI:0000:b3:00): "
    assert [code for _, code, _ in told(f"{head}79, a", f"{head}154, b", f"{head}45, c")] == [
        "79",
        "154",
        "45",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        PROBE[1:],
        PROBE[:2],
        [
            PROBE[0],
            "NVRM: (PCI ID: 10de:26b9) installed in this system is",
            "NVRM: not supported by the driver.",
        ],
        [f"[ 10.0] {PROBE[0]}", f"[ 16.0] {PROBE[2]}"],
        [PROBE[0], *["usb 1-1: demo"] * 8, PROBE[2]],
        [f"3,1,1,-;{PROBE[0]}", f"11,2,2,-;{PROBE[2]}"],
        [f"11,1,1,-;{PROBE[0]}", f"3,2,2,-;{PROBE[2]}"],
        [f"3,1,1,-;{PROBE[0]}", f" {PROBE[2]}"],
        ["NVRM: The NVIDIA probe routine failed for 1 device(s)."],
        ["NVRM: GPU has fallen off the bus."],
        ["somebody has fallen off the bus NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."],
    ],
)
def test_parts_of_it_are_nothing(lines):
    assert told(*lines) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: GPU 0000:4c:00.0: RmInitAdapter failed! (0x62:0x40:2192)",
            ("init", "rm-init-adapter-failed", "0000:4c:00"),
        ),
        (
            "nvidia-peermem demo_callback:127 ERROR detected invalid context, skipping",
            ("peermem", "peermem-invalid-context", None),
        ),
        (
            "pt_main[25443]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3d3]",
            ("nccl", "nccl-segfault", None),
        ),
        ("infiniband efa_3: demo admin command 7 no completion", ("efa", "efa-command-not-completed", None)),
        (
            "infiniband rdmap16s27: The device didn't send any completion for admin cmd DEMO(6)",
            ("efa", "efa-command-not-completed", None),
        ),
        (
            "efa 0000:10:1b.0: Wait for completion (polling) timeout",
            ("efa", "efa-command-not-completed", "0000:10:1b"),
        ),
        (
            "efa 0000:10:1b.0 rdmap16s27: The device sent a completion but the driver got no interrupt",
            ("efa", "efa-completion-without-interrupt", "0000:10:1b"),
        ),
        ("infiniband efa_0: Admin queue is closed", ("efa", "efa-admin-queue-closed", None)),
        ("infiniband efa_0: Reset indication didn't turn on", ("efa", "efa-reset-stuck", None)),
        ("infiniband efa_0: Reset indication didn't turn off", ("efa", "efa-reset-stuck", None)),
        (
            "ena 0000:00:06.0 ens6: demo keep alive timeout, 6000 msecs",
            ("ena", "ena-keep-alive-timeout", "0000:00:06"),
        ),
        (
            "ena 0000:00:06.0 ens6: Keep alive watchdog timeout.",
            ("ena", "ena-keep-alive-timeout", "0000:00:06"),
        ),
        (
            "ena 0000:00:06.0: ENA admin queue is not in running state!",
            ("ena", "ena-admin-queue-not-running", "0000:00:06"),
        ),
        (
            "ena 0000:00:06.0 eth0: Found a Tx that wasn't completed on time, qid 2, index 4.",
            ("ena", "ena-tx-not-completed", "0000:00:06"),
        ),
        ("ena 0000:00:06.0 eth0: Trigger reset is on", ("ena", "ena-reset-triggered", "0000:00:06")),
        (
            "ena 0000:00:06.0: Device reset completed successfully",
            ("ena", "ena-reset-completed", "0000:00:06"),
        ),
        (
            "ena 0000:00:06.0: Reset attempt failed. Can not reset the device",
            ("ena", "ena-reset-failed", "0000:00:06"),
        ),
        (
            "ena 0000:00:03.0 (unnamed net_device) (uninitialized): Trigger reset is on",
            ("ena", "ena-reset-triggered", "0000:00:03"),
        ),
    ],
)
def test_other_troubles(line, expected):
    assert told(line) == told(f"3,1,1,-;{line}") == [expected]
    assert told(f"12,1,1,-;{line}") == told(f"bash[7]: {line}") == []


def test_the_process_that_died_within_nccl():
    line = "pt [x] main[77]: segfault at 0 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2.19.3[7f7c+d3d3]"
    (event,) = parse([line])
    assert (event.finding.process, event.finding.pid) == ("pt [x] main", 77)


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB",
        "python3[77]: segfault at 0 ip 00007f7c sp 00007f7c error 4 in libc.so.6[7f7c+d3d3]",
        "segfault at 0 in libnccl.so.2",
        "ERROR detected invalid context, skipping further processing",
        "nvidia-peermem loaded",
        "ena 0000:00:06.0 ens6: Link is Up",
        "ena 0000:00:05.0: Elastic Network Adapter (ENA) v2.14.1g",
        "ena 0000:00:05.0 eth0: Admin queue is closed",
        "infiniband mlx5_0: Wait for completion (polling) timeout",
        "infiniband efa_0: Setup irq, 2 of 8",
        "efa 0000:10:1b.0: Admin queue is open",
        "NVRM: GPU 0000:04:00.0: rm_init_adapter failed, device minor number 0",
        "NVRM: RmInitAdapter failed! (0x62:0x65:2028)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64",
        "nvidia 0000:b3:00.0: probe with driver nvidia failed with error -1",
        "pcieport 0000:00:1e.0: AER: Corrected error received",
        "nvme0n1: I/O error, default",
    ],
)
def test_nothing(line):
    assert told(line, f"3,1,1,-;{line}") == []


MARKER = Marker(Phase.BEFORE, "node/prod/ip-10-0-0-1", "GPU-3f", "0000:53:00")


@pytest.mark.parametrize(
    "line",
    [
        f"13,77,100000000,-;{marker_line(MARKER)}",
        f"[  100.000000] {marker_line(MARKER)}",
        f"user  :notice: [  100.000000] {marker_line(MARKER)}",
        f"Mar  1 10:00:00 gpu-a1 {marker_line(MARKER)}",
        f"Mar  1 10:00:00 gpu-a1 kernel: [  100.000000] {marker_line(MARKER)}",
        f"<13>1 2026-03-01T10:00:00Z gpu-a1 gpu-runbooks - - - {marker_line(MARKER).partition(' ')[2]}",
        json.dumps(
            {
                "_TRANSPORT": "kernel",
                "SYSLOG_FACILITY": "1",
                "SYSLOG_IDENTIFIER": "gpu-runbooks",
                "MESSAGE": marker_line(MARKER).partition(" ")[2],
            }
        ),
    ],
)
def test_a_mark_of_a_reset_of_ours(line):
    (event,) = parse([line])
    assert (event.kind, event.code, event.pci) == (Kind.MARKER, "before", "0000:53:00")
    assert event.finding.marker == MARKER


@pytest.mark.parametrize(
    "line",
    [
        "13,77,100000000,-;gpu-runbooks: reset phase=during incident=a",
        "13,77,100000000,-;gpu-runbooks: rebooting",
        f"13,77,100000000,-;somebody says {marker_line(MARKER)}",
    ],
)
def test_no_mark(line):
    assert told(line) == []
