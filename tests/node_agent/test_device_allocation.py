"""The kubelet's records of allocated devices and claims, in the forms that they are found in."""

import json

import pytest

from gpu_runbooks.workers.node_agent.device_allocation import LARGEST_FILE, allocated_pods
from testbed.gpu_allocations import CHECKPOINT, allocate, end_pod
from testbed.gpus import Presence, change_gpu, healthy_gpus

FIRST, SECOND, *_ = (gpu.uuid for gpu in healthy_gpus())
POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
OTHER_POD = "3b1e6f0a-1c2d-4e3f-9a8b-7c6d5e4f3a2b"
STATIC_POD = "8d7c5f1b2e640f7a3c529d7e4a528a3b"


def entry(devices, pod=POD, resource="nvidia.com/gpu"):
    return {
        "PodUID": pod,
        "ContainerName": "main",
        "ResourceName": resource,
        "DeviceIDs": devices,
        "AllocResp": "CgA=",
    }


def record(kubelet, *entries):
    content = {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}, "Checksum": 1}
    (kubelet / CHECKPOINT).write_text(json.dumps(content))


def claim(kubelet, *drivers):
    claims = [{"ClaimUID": "c", "PodUIDs": {POD: {}}, "DriverState": {driver: {} for driver in drivers}}]
    data = {"kind": "DRACheckpoint", "ClaimInfoStateList": claims if drivers else None}
    (kubelet / "dra_manager_state").write_text(json.dumps({"Data": json.dumps(data), "Checksum": 1}))


def test_the_pods_of_each_gpu(kubelet):
    allocate(kubelet, FIRST, POD)
    allocate(kubelet, SECOND, OTHER_POD)
    assert allocated_pods(kubelet) == {FIRST: (POD,), SECOND: (OTHER_POD,)}
    end_pod(kubelet, POD)
    assert allocated_pods(kubelet) == {SECOND: (OTHER_POD,)}


def test_containers_numa_nodes_and_shares_come_together(kubelet):
    record(
        kubelet,
        entry({"-1": [FIRST]}),
        entry({"0": [f"{FIRST}::0"], "1": [f"{SECOND}::11"]}, STATIC_POD, "nvidia.com/gpu.shared"),
        entry({"0": [FIRST]}),
        entry({"0": ["0000:10:1b.0"]}, OTHER_POD, "vpc.amazonaws.com/efa"),
        entry(None, OTHER_POD),
    )
    assert allocated_pods(kubelet) == {FIRST: (POD, STATIC_POD), SECOND: (STATIC_POD,)}


@pytest.mark.parametrize(
    ("device", "resource"),
    [
        ("MIG-1f0a7c52-9d7e-5a52-8a3b-0d7c5f1b2e64", "nvidia.com/gpu"),
        ("MIG-1f0a7c52-9d7e-5a52-8a3b-0d7c5f1b2e64", "nvidia.com/mig-1g.10gb"),
        ("MIG-1f0a7c52-9d7e-5a52-8a3b-0d7c5f1b2e64", "example.com/slice"),
        ("nvidia0", "nvidia.com/gpu"),
        (f"{FIRST}-3", "nvidia.com/gpu"),
        (f"{FIRST}-_-3", "example.com/gpu-mem"),
        (7, "nvidia.com/gpu"),
    ],
)
def test_a_device_that_may_be_of_any_gpu_leaves_all_unknown(kubelet, device, resource):
    record(kubelet, entry({"0": [SECOND]}), entry({"0": [device]}, OTHER_POD, resource))
    assert allocated_pods(kubelet) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"Data": null}',
        '{"Data": {"PodDeviceEntries": {}}}',
        '{"Data": {"PodDeviceEntries": [7]}}',
        '{"Data": {"PodDeviceEntries": [{"ResourceName": "nvidia.com/gpu"}]}}',
        '{"Data": {"PodDeviceEntries": [{"PodUID": "", "ResourceName": "nvidia.com/gpu"}]}}',
        json.dumps({"Data": {"PodDeviceEntries": [entry([FIRST])]}}),
        json.dumps({"Data": {"PodDeviceEntries": [entry({"0": FIRST})]}}),
        "[" * 100_000,
        '"\ud800"'.encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_records_that_cannot_be_read_are_unknown(kubelet, content):
    (kubelet / CHECKPOINT).write_text(content)
    assert allocated_pods(kubelet) is None


def test_no_kubelet_and_a_file_beyond_reason_are_unknown(kubelet, tmp_path):
    assert allocated_pods(tmp_path / "nowhere") is None
    with (kubelet / CHECKPOINT).open("r+b") as file:
        file.truncate(LARGEST_FILE + 1)
    assert allocated_pods(kubelet) is None


def test_a_gpu_of_more_pods_than_can_be_told_is_unknown(kubelet):
    record(kubelet, *(entry({"0": [f"{FIRST}::{number}"]}, f"pod-{number}") for number in range(65)))
    assert allocated_pods(kubelet) is None


@pytest.mark.parametrize(
    ("drivers", "known"),
    [
        ((), True),
        (("compute-domain.nvidia.com",), True),
        (("compute-domain.nvidia.com", "dra.net"), True),
        (("gpu.nvidia.com",), False),
        (("compute-domain.nvidia.com", "gpu.nvidia.com"), False),
        (("example.com",), False),
    ],
)
def test_a_claim_that_may_hold_a_gpu_leaves_all_unknown(kubelet, drivers, known):
    allocate(kubelet, FIRST, POD)
    claim(kubelet, *drivers)
    assert (allocated_pods(kubelet) is not None) == known


@pytest.mark.parametrize(
    "content", ["", "{}", '{"Data": {}}', '{"Data": "{"}', '{"version": "v1", "entries": []}']
)
def test_claims_that_cannot_be_read_leave_all_unknown(kubelet, content):
    (kubelet / "dra_manager_state").write_text(content)
    assert allocated_pods(kubelet) is None


def test_the_measurement_tells_them_for_each_gpu_also_a_lost_one(nvml, state, kubelet):
    nvml.measure()
    allocate(kubelet, FIRST, POD)
    change_gpu(state, 0, presence=Presence.LOST)
    lost, free = nvml.measure().facts.gpus[:2]
    assert (lost.uuid, lost.allocated_pod_uids, free.allocated_pod_uids) == (FIRST, (POD,), ())
    (kubelet / CHECKPOINT).unlink()
    assert {gpu.allocated_pod_uids for gpu in nvml.measure().facts.gpus} == {None}
