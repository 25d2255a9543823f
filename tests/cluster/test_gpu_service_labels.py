"""What the GPU Operator's labels mean, and whose pods are of a service, as tables."""

import pytest

from gpu_runbooks.activities.gpu_services.labels import CLIENT, MANAGED, PAUSED, PREFIX, others_at_work
from gpu_runbooks.activities.gpu_services.pods import kept_off, name_of, pods_of_services

STATE = "nvidia.com/gpu-driver-upgrade-state"
PLUGIN = f"{PREFIX}device-plugin"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {STATE: "upgrade-done"},
        {STATE: ""},
        {PLUGIN: "true"},
        {PLUGIN: "false"},
        {PLUGIN: PAUSED},
        {f"{PREFIX}nvsm": ""},
        {f"{PREFIX}driver": "pre-installed"},
        {f"{PREFIX}operands": "false"},
        {"nvidia.com/mig.config.state": "success"},
        {"nvidia.com/mig.config.state": "failed"},
        {"nvidia.com/gpu.product": "paused-for-driver-upgrade"},
    ],
)
def test_nobody_is_at_work(labels):
    assert others_at_work(labels) == ()


@pytest.mark.parametrize(
    "state",
    [
        "upgrade-required",
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "post-maintenance-required",
        "pod-restart-required",
        "validation-required",
        "uncordon-required",
        "upgrade-failed",
        "a-state-of-a-later-version",
    ],
)
@pytest.mark.parametrize("key", [STATE, "nvidia.com/vgpu-driver-upgrade-state"])
def test_a_driver_upgrade_is_at_work(key, state):
    assert others_at_work({key: state, PLUGIN: "true"}) == (f"{key}={state}",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, "paused-for-driver-upgrade") for key in MANAGED),
        (PLUGIN, "paused-for-mig-change"),
        (PLUGIN, "paused-for-vgpu-change"),
        (PLUGIN, f"{PAUSED}_paused-for-driver-upgrade"),
        (PLUGIN, "somebody-s-own"),
        (PLUGIN, "True"),
        (f"{PREFIX}operator-validator", "paused-for-driver-upgrade"),
        (f"{PREFIX}driver", "true_paused-for-driver-upgrade"),
        ("nvidia.com/mig.config.state", "pending"),
        ("nvidia.com/mig.config.state", "rebooting"),
    ],
)
def test_somebody_is_at_work(key, value):
    assert others_at_work({key: value}) == (f"{key}={value}",)


def test_the_driver_and_what_it_needs_are_never_stopped():
    never = {"driver", "container-toolkit", "operator-validator", "operands", "dra-driver"}
    assert not {f"{PREFIX}{each}" for each in never} & set(MANAGED)


def pod(*, owner="DaemonSet", phase="Running", **spec):
    return {
        "metadata": {"name": "pod-1", "namespace": "gpu-operator", "ownerReferences": [{"kind": owner}]},
        "spec": spec,
        "status": {"phase": phase},
    }


def by_affinity(key):
    terms = [{"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("candidate", "is_of_a_service"),
    [
        (pod(nodeSelector={PLUGIN: "true"}), True),
        (pod(nodeSelector={PLUGIN: "true"}, phase="Pending"), True),
        (pod(**by_affinity(CLIENT)), True),
        (pod(nodeSelector={PLUGIN: "true"}, phase="Failed"), False),
        (pod(nodeSelector={PLUGIN: "true"}, owner="ReplicaSet"), False),
        (pod(nodeSelector={f"{PREFIX}driver": "true"}), False),
        (pod(nodeSelector={"kubernetes.io/os": "linux"}), False),
        (pod(), False),
    ],
)
def test_pods_of_the_services(candidate, is_of_a_service):
    assert bool(pods_of_services([candidate], MANAGED)) is is_of_a_service


@pytest.mark.parametrize(
    ("tolerations", "taint", "comes_back"),
    [
        ([], {"key": "a", "effect": "NoSchedule"}, False),
        (None, {"key": "a", "effect": "NoExecute"}, False),
        ([], {"key": "a", "effect": "PreferNoSchedule"}, True),
        ([], {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, True),
        ([{"operator": "Exists"}], {"key": "a", "effect": "NoSchedule"}, True),
        ([{"key": "a", "operator": "Exists"}], {"key": "a", "value": "v", "effect": "NoSchedule"}, True),
        (
            [{"key": "a", "operator": "Exists", "effect": "NoExecute"}],
            {"key": "a", "effect": "NoSchedule"},
            False,
        ),
        ([{"key": "a", "value": "v"}], {"key": "a", "value": "v", "effect": "NoSchedule"}, True),
        ([{"key": "a", "value": "w"}], {"key": "a", "value": "v", "effect": "NoSchedule"}, False),
        ([{"key": "b", "operator": "Exists"}], {"key": "a", "effect": "NoSchedule"}, False),
        (
            [{"key": "a", "operator": "Gt", "value": "1"}],
            {"key": "a", "value": "2", "effect": "NoSchedule"},
            False,
        ),
    ],
)
def test_pods_that_a_taint_keeps_off(tolerations, taint, comes_back):
    found = kept_off([pod(tolerations=tolerations)], {"metadata": {"name": "n"}, "spec": {"taints": [taint]}})
    expected = {} if comes_back else {name_of(pod()): f"{taint['key']}:{taint['effect']}"}
    assert found == expected
