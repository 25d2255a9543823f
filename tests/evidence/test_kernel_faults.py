"""The faults that a bundle lists beside the kernel log that it holds."""

import json

import pytest

from gpu_runbooks.activities.evidence import bundle as evidence_bundle
from gpu_runbooks.activities.evidence.kernel_faults import faults_part
from gpu_runbooks.activities.model.node_task import HardwareFacts

UUID = "GPU-11112222-3333-4444-5555-666677778888"
HEAD = "# 2026-03-01T12:00:00+00:00 is 100000000000 microseconds after boot\n"
XID = "3,12,99940000000,-;NVRM: Xid (PCI:0000:9b:00): 45, pid=7, name=a, Ch 1 caused by previous Xid 94\n"
LOST = "3,14,99950000000,-;NVRM: GPU 0000:9c:00.0: GPU has fallen off the bus.\n"
FACTS = HardwareFacts.model_validate({"gpus": [{"index": 0, "uuid": UUID, "pci_address": "0000:9b:00"}]})


def test_each_fault_is_told_with_its_time_and_gpu():
    part = faults_part(
        {"text": HEAD + XID + "6,13,1,-;usb\n" + LOST, "note": "", "complete": True}, "b00t", FACTS
    )
    assert part == {
        "items": [
            {
                "kind": "xid",
                "code": "79",
                "time": "2026-03-01T11:59:10.000+00:00",
                "sequence": 14,
                "pci": "0000:9c:00",
                "text": "GPU 0000:9c:00.0: GPU has fallen off the bus.",
            },
            {
                "kind": "xid",
                "code": "45",
                "time": "2026-03-01T11:59:00.000+00:00",
                "sequence": 12,
                "pci": "0000:9b:00",
                "uuid": UUID,
                "process": "a",
                "caused_by": 94,
                "text": "Ch 1 caused by previous Xid 94",
            },
        ],
        "note": "",
        "complete": True,
    }


@pytest.mark.parametrize("said", [{}, {"complete": False}, {"complete": "true"}, {"complete": 1}])
def test_without_the_agents_word_the_log_is_not_whole(said):
    part = faults_part({"text": HEAD + "6,13,1,-;usb\n", "note": "", **said}, "b00t", None)
    assert part == {"items": [], "note": "", "complete": False}


@pytest.mark.parametrize("part", [None, "text", 7, [], {}, {"text": ""}, {"text": None, "note": "gone"}])
def test_without_a_log_nothing_is_told(part):
    assert faults_part(part, "b00t", FACTS) is None


@pytest.mark.parametrize(
    "head",
    [
        "",
        "# soon is 5 microseconds after boot\n",
        "# 0001-01-01T00:00:00+00:00 is 9999999999999999999 microseconds after boot\n",
    ],
)
def test_a_log_that_does_not_say_when_the_node_booted_has_no_times(head):
    (fault,) = faults_part({"text": head + LOST, "note": ""}, "b00t", None)["items"]
    assert "time" not in fault


def test_of_a_flood_the_newest_are_listed():
    text = "".join(
        f"3,{number},{number},-;NVRM: Xid (PCI:0000:9b:00): 31, pid={number}, demo {'x' * 400}\n"
        for number in range(2000)
    )
    part = faults_part({"text": text, "note": "", "complete": True}, "b00t", None)
    assert part["items"][0]["sequence"] == 1999
    assert part["note"] == f"{len(part['items'])} of 2000 are kept"
    assert evidence_bundle.size(part["items"]) <= evidence_bundle.FAULTS


def test_whatever_an_agent_writes_is_plain():
    part = faults_part(
        {"text": HEAD + XID.replace("name=a", "name=\x1b[2J\x00é"), "note": ""}, "\x1b" * 99, None
    )
    assert json.dumps(part).isascii()
    assert "\\u001b" not in json.dumps(part)
