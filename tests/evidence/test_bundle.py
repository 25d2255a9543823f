"""The bundle before a repair stays within its limit whatever is in it, and says what was cut."""

import json

import pytest

from gpu_runbooks.activities.evidence import bundle as evidence_bundle
from gpu_runbooks.activities.evidence.evidence import canonical
from gpu_runbooks.activities.evidence.kernel_faults import faults_part

NODE = {
    "metadata": {
        "name": "gpu-01",
        "uid": "node-uid",
        "creationTimestamp": "2026-03-01T08:00:00Z",
        "labels": {"gpu-runbooks.dev/pool": "p5"},
        "annotations": {"team": "research"},
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {
        "providerID": "aws:///us-west-2a/i-0123456789abcdef0",
        "taints": [{"key": "gpu-runbooks.dev/remediation", "value": "xid-79", "effect": "NoSchedule"}],
        "unschedulable": True,
    },
    "status": {
        "conditions": [{"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}],
        "capacity": {"nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "7"},
        "nodeInfo": {"bootID": "boot-1", "kernelVersion": "6.12.40"},
        "images": [{"names": ["registry.example/app:1"]}],
    },
}


def event(number, **changes):
    return {
        "metadata": {"name": f"gpu-01.{number}", "creationTimestamp": f"2026-03-01T08:00:{number % 60:02}Z"},
        "reason": "NodeNotReady",
        "message": f"event {number}",
        "type": "Warning",
        **changes,
    }


def pod(number):
    return {
        "metadata": {
            "name": f"worker-{number:03}",
            "namespace": "research",
            "uid": f"uid-{number}",
            "ownerReferences": [{"kind": "Job", "name": "train", "controller": True, "uid": "j"}],
        },
        "spec": {"containers": [{"env": [{"name": "TOKEN", "value": "s3cr3t"}]}]},
        "status": {"phase": "Running"},
    }


def test_a_node_is_told_without_its_images():
    part = evidence_bundle.node_part(NODE)
    assert part["annotations"] == {"items": {"team": "research"}, "note": ""}
    assert part["taints"]["items"] == NODE["spec"]["taints"]
    assert part["conditions"]["items"] == NODE["status"]["conditions"]
    assert part["allocatable"]["items"] == {"nvidia.com/gpu": "7"}
    assert part["nodeInfo"]["items"]["bootID"] == "boot-1"
    assert (part["unschedulable"], part["providerID"]) == (True, NODE["spec"]["providerID"])
    assert "registry.example" not in json.dumps(part)
    assert "managedFields" not in json.dumps(part)


def test_a_bare_node_is_told_as_well():
    part = evidence_bundle.node_part({"metadata": {"name": "gpu-01", "uid": "u"}})
    assert part["labels"] == part["conditions"] | {"items": {}}


def test_of_a_pod_neither_spec_nor_environment():
    part = evidence_bundle.pods_part([pod(1)])
    assert part["items"] == [
        {
            "namespace": "research",
            "name": "worker-001",
            "uid": "uid-1",
            "owner": "Job train",
            "phase": "Running",
            "deleted": None,
        }
    ]
    assert "s3cr3t" not in json.dumps(part)


def test_events_are_newest_first_however_they_are_recorded():
    recorded = [
        event(1, lastTimestamp="2026-03-01T09:00:00Z", count=7),
        event(2, lastTimestamp=None, eventTime="2026-03-01T10:00:00.000000Z"),
        event(
            3,
            eventTime="2026-03-01T08:30:00.000000Z",
            series={"count": 9, "lastObservedTime": "2026-03-01T11:00:00Z"},
        ),
        event(4),
    ]
    part = evidence_bundle.events_part(recorded)
    assert [each["message"] for each in part["items"]] == ["event 3", "event 2", "event 1", "event 4"]
    assert [each["count"] for each in part["items"]] == [9, None, 7, None]


def test_of_too_many_events_the_newest_are_kept():
    part = evidence_bundle.events_part(
        event(number, lastTimestamp=f"2026-03-{1 + number // 1000:02}T08:00:00Z") for number in range(5000)
    )
    assert evidence_bundle.size(part["items"]) <= evidence_bundle.EVENTS
    assert part["items"][0]["last"] == "2026-03-05T08:00:00Z"
    assert part["note"] == f"{len(part['items'])} of 5000 are kept"


@pytest.mark.parametrize(("newest", "kept"), [(True, "end"), (False, "beginning")])
def test_a_text_beyond_its_budget_keeps_one_end(newest, kept):
    text = "beginning" + "é" * 100_000 + "end"
    part = evidence_bundle.text_part({"text": text, "note": "was cut before"}, 64 * 1024, newest=newest)
    assert evidence_bundle.size(part["text"]) <= 64 * 1024
    assert part["text"].endswith("end") == (kept == "end")
    assert part["text"].startswith("beginning") == (kept == "beginning")
    assert part["note"].startswith("was cut before; ")
    assert part["note"].endswith(" of 100012 characters are kept")


@pytest.mark.parametrize("part", [None, "text", 7, ["text"]])
def test_what_is_no_part_is_none(part):
    assert evidence_bundle.text_part(part, 1024, newest=True) is None


def test_facts_without_end_lose_their_pods_first():
    facts = {"gpus": [{"index": n, "uuid": "u" * 90, "pod_uids": ["p" * 60] * 64} for n in range(64)]}
    part = evidence_bundle.facts_part(facts)
    assert [gpu["index"] for gpu in part["gpus"]] == list(range(64))
    assert not any("pod_uids" in gpu for gpu in part["gpus"])
    assert part["note"] == "64 of 64 GPUs are kept, without their pods: they are too many"


@pytest.mark.parametrize("character", ["x", '"', "\n", "\x1b", "é", "💥"])
def test_the_largest_parts_together_stay_below_the_limit(character):
    """As a compromised agent or a careless controller would fill them."""
    long = character * 300_000
    node = {
        "metadata": {
            **NODE["metadata"],
            "labels": {f"{number}{long[:60]}": long[:60] for number in range(2000)},
            "annotations": {f"{number}": long for number in range(20)},
        },
        "spec": {"taints": [{"key": long}] * 500, "providerID": long},
        "status": {
            **{name: {f"{number}": long[:60] for number in range(2000)} for name in ("capacity", "nodeInfo")},
            "allocatable": {long: long},
            "conditions": [{"type": long, "message": long}] * 100,
        },
    }
    facts = {"gpus": [{"index": n, "uuid": long[:96], "serial": long[:64]} for n in range(64)]}
    gpus = [{**gpu, "pod_uids": [long[:64]] * 64, "board": long[:64]} for gpu in facts["gpus"]]
    flood = "".join(f"3,{n},1,-;NVRM: Xid (PCI:0000:9b:00): 31, {long[:400]}\n" for n in range(2000))
    bundle = {
        "reason": long[:1000],
        "other_repairer": long[:1000],
        "missing": [long[:300]] * 10,
        "node": evidence_bundle.node_part(node),
        "events": evidence_bundle.events_part([event(n, message=long) for n in range(500)]),
        "pods": evidence_bundle.pods_part([pod(n) for n in range(3000)]),
        "agent": {
            "message": long[:1000],
            "facts": evidence_bundle.facts_part({"gpus": gpus}),
            "kernel_log": evidence_bundle.text_part(
                {"text": long, "note": long}, evidence_bundle.KERNEL_LOG, newest=True
            ),
            "faults": faults_part({"text": flood}, long[:64], None),
            "dcgm": evidence_bundle.text_part(
                {"text": long, "note": long}, evidence_bundle.DCGM, newest=False
            ),
        },
    }
    assert len(canonical(bundle)) <= evidence_bundle.WHOLE
