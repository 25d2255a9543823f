"""Who repairs or removes a node besides us, and cannot be held off."""

from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import until

from gpu_runbooks.activities.karpenter.other_repairers import (
    duration_of,
    first_due,
    imminent_repair,
    legacy_repair,
)
from gpu_runbooks.activities.karpenter.repair_policies import repaired_by
from gpu_runbooks.activities.kubernetes.client import KubernetesError
from testbed.api_faults import respond

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
ON = "StaticCapacity=false,NodeRepair=true"


def karpenter(*args, version="1.8.1", image="public.example/karpenter:1.8.1", replicas=2, **env):
    """Karpenter's Deployment as its chart makes it."""
    container = {
        "image": image,
        "args": list(args),
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    return {
        "metadata": {
            "namespace": "kube-system",
            "name": "karpenter",
            "labels": {"app.kubernetes.io/version": version} if version else {},
        },
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [container]}}},
    }


@pytest.mark.parametrize(
    ("deployment", "legacy"),
    [
        (karpenter(FEATURE_GATES=ON), True),
        (karpenter(FEATURE_GATES="NodeRepair=false"), False),
        (karpenter(), False),  # off unless it is switched on
        (karpenter(f"--feature-gates={ON}"), True),
        (karpenter("-feature-gates", ON), True),
        (karpenter("--feature-gates=NodeRepair=false", FEATURE_GATES=ON), False),  # the flag wins
        (karpenter(FEATURE_GATES="NodeRepair=true,NodeRepair=false"), False),
        (karpenter(FEATURE_GATES=ON, replicas=0), False),
        (karpenter(FEATURE_GATES=ON, version="1.15.0"), False),  # our annotation holds it off
        (karpenter(FEATURE_GATES=ON, version="v2.0.0"), False),
        (
            karpenter(FEATURE_GATES=ON, version="", image="r.example:5000/k/controller:v1.15.2@sha256:00"),
            False,
        ),
        (karpenter(FEATURE_GATES=ON, version="", image="r.example:5000/k/controller:1.14.9"), True),
        (karpenter(FEATURE_GATES=ON, version="", image="r.example:5000/k/controller@sha256:00"), True),
        (karpenter("--legacy-node-repair=true", FEATURE_GATES=ON, version="1.15.0"), True),
        (karpenter("--legacy-node-repair", "--log-level=info", FEATURE_GATES=ON, version="1.15.0"), True),
        (karpenter(FEATURE_GATES=ON, LEGACY_NODE_REPAIR="true", version="1.15.0"), True),
        (karpenter("--legacy-node-repair=false", FEATURE_GATES=ON, version="1.15.0"), False),
        (karpenter("--legacy-node-repair=true", version="1.15.0"), False),  # not without the gate
    ],
)
def test_which_karpenter_cannot_be_held_off(deployment, legacy):
    assert (legacy_repair(deployment) is not None) is legacy


def node(*conditions):
    standing = [
        {"type": kind, "status": status, "lastTransitionTime": (NOW - timedelta(minutes=ago)).isoformat()}
        for kind, status, ago in conditions
    ]
    return {"metadata": {"name": "gpu-1"}, "status": {"conditions": standing}}


@pytest.mark.parametrize(
    ("conditions", "due_in", "which"),
    [
        ([("AcceleratedHardwareReady", "False", 4)], 6, "AcceleratedHardwareReady"),
        ([("AcceleratedHardwareReady", "False", 40)], -30, "AcceleratedHardwareReady"),
        ([("AcceleratedHardwareReady", "Unknown", 40)], None, None),
        ([("AcceleratedHardwareReady", "True", 40), ("Ready", "True", 40)], None, None),
        ([("Ready", "Unknown", 10), ("AcceleratedHardwareReady", "False", 1)], 9, "AcceleratedHardwareReady"),
        ([("Ready", "False", 25), ("AcceleratedHardwareReady", "False", 1)], 5, "Ready"),
        ([("gpu-runbooks.dev/GPUHealthy", "False", 40)], None, None),
    ],
)
def test_when_a_condition_runs_out_of_toleration(conditions, due_in, which):
    due = first_due(node(*conditions), repaired_by("aws"))
    if due_in is None:
        assert due is None
    else:
        assert due is not None
        assert (due[0] - NOW, due[1].condition) == (timedelta(minutes=due_in), which)


@pytest.mark.parametrize(
    ("text", "duration"),
    [("720h", timedelta(days=30)), ("1h30m0s", timedelta(minutes=90)), ("Never", None), ("", None)],
)
def test_how_long_a_claim_lives(text, duration):
    assert duration_of(text) == duration


async def test_nobody_else_repairs_a_node_that_is_not_karpenters(faulty, proxy, admin, node_of_nobody):
    assert await imminent_repair(faulty, node_of_nobody, NOW) == ""
    assert proxy.seen() == []


@pytest.mark.parametrize(
    ("taint", "words"),
    [("karpenter.sh/disrupted", "replaces it now"), ("karpenter.sh/rebooting", "reboots node")],
)
async def test_what_karpenter_does_already_is_told(kubernetes, make_node, taint, words):
    made = await make_node(labels={"karpenter.sh/nodepool": "gpu"})
    made["spec"]["taints"] = [{"key": taint, "effect": "NoSchedule"}]
    assert words in await imminent_repair(kubernetes, made, NOW)


async def test_a_node_that_is_being_deleted_is_told(admin, kubernetes, make_node):
    name = (await make_node())["metadata"]["name"]
    path = f"/api/v1/nodes/{name}"
    patch = "application/merge-patch+json"
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    await admin.request("PATCH", path, body=held, content_type=patch)
    await admin.request("DELETE", path)
    told = await imminent_repair(kubernetes, await admin.request("GET", path), NOW)
    await admin.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=patch)
    assert f"node {name} is being deleted already" in told
    await until(admin, "/api/v1/nodes", name, lambda found: found is None)


async def test_what_may_not_be_read_is_passed_over_and_what_does_not_answer_is_not(faulty, proxy, make_node):
    made = await make_node(labels={"karpenter.sh/nodepool": "gpu"})
    forbidden = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no such right"}
    proxy.inject(respond(403, forbidden), method="GET")
    assert await imminent_repair(faulty, made, NOW) == ""
    proxy.heal()
    proxy.inject(respond(500), method="GET")
    with pytest.raises(KubernetesError):
        await imminent_repair(faulty, made, NOW)


@pytest.fixture
async def node_of_nobody(make_node):
    return await make_node()
