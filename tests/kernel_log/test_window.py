"""When a stretch of the log is not whole, so that nobody may say there was no Xid."""

import json

import pytest

from gpu_runbooks.activities.kernel_log import Parser

XID = "NVRM: Xid (PCI:0000:1b:00): 31, pid=9, name=a, Ch 00000001"
QUIET = "usb 1-1: demo"
PROBE = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b9) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]


def window(*lines):
    parser = Parser()
    for line in lines:
        parser.feed(line)
    assert parser.window.complete == (parser.window.reasons == ())
    return parser.window


@pytest.mark.parametrize(
    "lines",
    [
        ["nvidia_rm_log: 412 callbacks suppressed"],
        ["[100.2] nvidia_rm_log: 412 callbacks suppressed"],
        ["4,1,1,-;nv_demo_isr: 3 callbacks suppressed"],
        ["nvswitch_demo: 3 callbacks suppressed"],
        ["_nvlink_demo: 3 callbacks suppressed"],
        ["uvm_demo: 3 callbacks suppressed"],
        ["rm_demo: 3 callbacks suppressed"],
        ["efa_com_demo: 3 callbacks suppressed"],
        ["ena_demo: 3 callbacks suppressed"],
        ["nvidia-uvm: 12 callbacks suppressed"],
        ["nvidia-modeset: 12 callbacks suppressed"],
        ["nvidia-nvswitch0: 12 callbacks suppressed"],
        ["nvidia: 12 callbacks suppressed"],
        ["nvidia 0000:1b:00.0: 3 callbacks suppressed"],
        ["NVRM: nvidia_rm_log: 12 callbacks suppressed"],
        ["NVRM: 12 callbacks suppressed"],
        ["efa 0000:1c:00.0: 3 callbacks suppressed"],
        ["ena 0000:1c:00.0: 3 callbacks suppressed"],
        ["infiniband rdmap28s0: 3 callbacks suppressed"],
        ["3,1,1,-;nvidia 0000:1b:00.0: 3 callbacks suppressed"],
        [XID, "___ratelimit: 7 callbacks suppressed"],
        ["___ratelimit: 7 callbacks suppressed", XID],
        [XID, "printk: 55 messages suppressed."],
        [XID, "__ratelimit: 7 callbacks suppressed"],
        ["printk_ratelimit: 7 callbacks suppressed", XID],
        [f"[100.1] {XID}", *[QUIET] * 50, "[105.0] printk: 55 messages suppressed."],
        ["[95.0] printk: 55 messages suppressed.", *[QUIET] * 50, f"[100.1] {XID}"],
        [XID, "** 12 printk messages dropped **"],
        ["3,1,1,-;a", "3,3,1,-;b"],
        ["3,1,1,-;a", "3,2,1,-;b", "3,1,1,-;a", "3,2,1,-;b", "3,9,1,-;c"],
        ["Mar  1 10:00:00 a systemd-journald[77]: Missed 12 kernel messages"],
        ["12,1,1,-;systemd-journald[77]: /dev/kmsg buffer overrun, some messages lost."],
        PROBE[:1],
        PROBE[:2],
        PROBE[1:],
        PROBE[2:],
        [PROBE[0], *PROBE],
        [PROBE[0], *[QUIET] * 8, PROBE[2]],
        [f"[10.0] {PROBE[0]}", f"[20.0] {XID}"],
        [f"[10.0] {PROBE[0]}", f"[16.0] {PROBE[2]}"],
        [
            json.dumps({"_TRANSPORT": "kernel", "_BOOT_ID": boot, "MESSAGE": message})
            for boot, message in (("a", PROBE[0]), ("b", XID))
        ],
    ],
)
def test_it_lacks_something(lines):
    assert not window(*lines).complete


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [XID],
        ["net_ratelimit: 12 callbacks suppressed"],
        [XID, "net_ratelimit: 12 callbacks suppressed", XID],
        [XID, "kauditd_printk_skb: 12 callbacks suppressed"],
        ["nvme_demo: 3 callbacks suppressed"],
        ["nvme 0000:1b:00.0: 3 callbacks suppressed"],
        ["___ratelimit: 7 callbacks suppressed"],
        ["NVRM: Xid (PCI:0000:1b:00): 31, pid=9, name=NVRM: 3 callbacks suppressed, Ch 00000001"],
        ["printk: 55 messages suppressed."],
        ["printk: 55 messages suppressed.", QUIET, XID],
        [f"[100.1] {XID}", "[170.0] printk: python3: 55 output lines suppressed due to ratelimiting"],
        ["12,1,1,-;nvidia_rm_log: 412 callbacks suppressed"],
        ["Mar  1 10:00:00 a python[7]: nvidia_rm_log: 412 callbacks suppressed"],
        ["python: nvidia_rm_log: 412 callbacks suppressed"],
        PROBE,
        [PROBE[0], *PROBE[:1], *PROBE[1:], *PROBE[1:]],
        [f"NVRM: Xid (PCI:0000:b3:00): 79, {PROBE[2][6:]}", PROBE[2]],
        [
            PROBE[0],
            "NVRM: (PCI ID: 10de:26b9) installed in this system is",
            "NVRM: not supported by the driver.",
        ],
        ["NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b9) installed in this system is not supported"],
        ["NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b9) has fallen off the bus"],
        [f"11,1,1,-;{PROBE[0]}", f"11,2,1,-;{PROBE[2]}"],
        ["3,5,1,-;a", " SUBSYSTEM=pci", "3,6,1,-;b", "3,5,1,-;a", "3,6,1,-;b", "3,7,1,-;c"],
    ],
)
def test_it_is_whole(lines):
    assert window(*lines).complete


def test_the_reason_says_what_is_missing():
    seen = window("3,1,1,-;a", "3,9,1,-;b", "4,10,1,-;nvidia_rm_log: 412 callbacks suppressed")
    assert seen.reasons == ("records 2 to 8 are missing", "nvidia_rm_log: 412 callbacks suppressed")


def test_a_gpu_of_which_nothing_more_is_said_is_named():
    (reason,) = window(PROBE[0]).reasons
    assert "GPU 0000:b3:00" in reason


def test_a_gpu_that_was_named_before_the_window_counts_only_where_its_end_is_told():
    parser = Parser()
    parser.feed(f"[10.0] {PROBE[0]}")
    parser.begin_window()
    assert parser.window.complete
    parser.feed(f"[90.0] {XID}")
    parser.feed(f"[90.0] {PROBE[0].replace('b3', 'b4')}")
    assert [reason for reason in parser.window.reasons if "b3" in reason] == []


def test_reasons_are_bounded():
    seen = window(
        *(f"nvidia_rm_log: {number} callbacks suppressed {'x' * 5000}" for number in range(1000)),
        *(PROBE[0].replace("b3", f"{bus:02x}") for bus in range(256)),
    )
    assert not seen.complete
    assert sum(map(len, seen.reasons)) <= 32 * 160


def test_a_new_window_begins_whole_but_goes_on_with_the_sequence():
    parser = Parser()
    for line in ("3,1,1,-;a", "3,9,1,-;b"):
        parser.feed(line)
    parser.begin_window()
    parser.feed("3,10,1,-;c")
    assert parser.window.complete
    parser.feed("3,12,1,-;d")
    assert parser.window.reasons == ("records 11 to 11 are missing",)
