"""Events as faults: what the policy gets to see."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities.kernel_log import fault_of, parse
from gpu_runbooks.activities.model.fault import Entity, FaultSource

SEEN = datetime(2026, 3, 1, 10, 0, 5, tzinfo=UTC)
BOOT = datetime(2026, 3, 1, 9, 58, 20, tzinfo=UTC)
UUID = "GPU-11112222-3333-4444-5555-666677778888"


def fault(*lines, **known):
    *_, event = parse(lines, boot_id="b00t", **known)
    return fault_of(event, seen=SEEN, reporter="node agent")


def test_an_xid_of_a_known_gpu():
    told = fault(
        f"6,11,1,-;NVRM: GPU at PCI:0000:4c:00: {UUID}",
        "3,12,100211323,-;NVRM: Xid (PCI:0000:4c:00 GPU-I:07): 13, pid=91, name=infer, "
        "demo on (GPC 2, TPC 1, SM 0)",
        boot_time=BOOT,
    )
    assert (told.source, told.code) == (FaultSource.XID, "13")
    assert told.entity == Entity(kind="gpu", uuid=UUID, pci_address="0000:4c:00")
    assert (told.place, told.boot_id, told.fingerprint) == ("GPC 2 TPC 1", "b00t", "kernel:b00t/12")
    assert told.first_seen == told.last_seen == datetime(2026, 3, 1, 10, 0, 0, 211323, tzinfo=UTC)
    assert told.summary == "Xid 13 (0000:4c:00, GPU instance 7, process infer): demo on (GPC 2, TPC 1, SM 0)"
    assert told.reporter == "node agent"


def test_a_lost_gpu_without_uuid_is_a_fault_of_its_address():
    told = fault("NVRM: GPU 0000:4C:00.0: GPU has fallen off the bus.")
    assert (told.source, told.code) == (FaultSource.XID, "79")
    assert told.entity == Entity(kind="gpu", uuid=None, pci_address="0000:4c:00")
    assert told.first_seen == SEEN


def test_an_xid_45_is_a_fault_of_its_cause():
    line = "NVRM: Xid (PCI:0000:4c:00): 45, pid=91, name=infer, Ch 00000002 caused by previous Xid 94"
    assert fault(line).code == "94"
    assert fault(line.partition(" caused")[0]).code == "45"


@pytest.mark.parametrize(
    ("line", "source", "code", "kind", "grade", "place", "action"),
    [
        (
            "NVRM: Xid (PCI:0000:4c:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Demo)",
            "xid",
            "154",
            "gpu",
            "",
            "",
            2,
        ),
        (
            "NVRM: Xid (PCI:0000:4c:00): 149, NETIR_DEMO Fatal XC0 i0 Link 03 (0x1)",
            "xid",
            "149",
            "gpu",
            "fatal",
            "NETIR_DEMO link 3",
            None,
        ),
        (
            "NVRM: Xid (PCI:0000:4c:00): 95, pid=9, Uncontained: demo (0x1, 0x0). RST: Yes, D-RST: No",
            "xid",
            "95",
            "gpu",
            "",
            "",
            1,
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 09 demo",
            "sxid",
            "20034",
            "nvswitch",
            "fatal",
            "link 9",
            None,
        ),
        ("infiniband efa_0: Admin queue is closed", "efa", "efa-admin-queue-closed", "nic", "", "", None),
        (
            "ena 0000:00:06.0 ens6: Keep alive watchdog timeout.",
            "kernel",
            "ena-keep-alive-timeout",
            "nic",
            "",
            "",
            None,
        ),
        (
            "NVRM: GPU 0000:4c:00.0: RmInitAdapter failed! (0x1:0x2:3)",
            "kernel",
            "rm-init-adapter-failed",
            "gpu",
            "",
            "",
            None,
        ),
        (
            "pt[7]: segfault at 0 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3d3]",
            "kernel",
            "nccl-segfault",
            "node",
            "",
            "",
            None,
        ),
        (
            "nvidia-peermem demo:127 ERROR detected invalid context",
            "kernel",
            "peermem-invalid-context",
            "node",
            "",
            "",
            None,
        ),
    ],
)
def test_the_fields_of_a_fault(line, source, code, kind, grade, place, action):
    told = fault(line)
    assert (told.source.value, told.code, told.entity.kind) == (source, code, kind)
    assert (told.grade, told.place, told.recovery_action) == (grade, place, action)


@pytest.mark.parametrize(
    "line",
    [
        "13,1,1,-;gpu-runbooks: reset phase=after incident=a",
        "ena 0000:00:06.0: Device reset completed successfully",
    ],
)
def test_what_is_no_fault(line):
    assert fault(line) is None


def test_whatever_was_logged_the_summary_is_plain_and_bounded():
    name, text = "\x1b[2Jn\u00e4" + "m" * 9000, "\u2028" * 9000
    told = fault(f"NVRM: Xid (PCI:0000:4c:00): 62, pid=7, name={name}, {text}")
    assert len(told.summary) <= 300
    assert told.summary.isascii()
    assert told.summary.isprintable()


def test_the_same_record_has_the_same_fingerprint_in_every_reader():
    line = "3,4611,4071000000,-;NVRM: Xid (PCI:0000:9b:00): 119, pid=2, name=a, Timeout after 45s"
    assert fault(line) == fault("6,4610,1,-;usb", line, line)
    untimed = "NVRM: Xid (PCI:0000:9b:00): 119, pid=2, name=a, Timeout after 45s"
    assert fault(untimed).fingerprint == fault(untimed).fingerprint != fault(f"[ 1.0] {untimed}").fingerprint
