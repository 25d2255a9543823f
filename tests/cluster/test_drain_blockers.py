"""What keeps a drain from ending, each produced on a real API server."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from cluster.conftest import drain_request, pod_names, until
from cluster.drain_obstacles import (
    BUDGETS,
    EVICTION,
    become_unready,
    blocked_by,
    make_budget,
    patch,
    pod_path,
)

from gpu_runbooks.activities.draining import calls as drain_calls
from gpu_runbooks.activities.draining import eviction as drain_eviction
from gpu_runbooks.activities.draining import state as drain_state
from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.model.drain import DrainPolicy
from testbed.api_faults import respond, status
from testbed.nodes import reboot_annotations


async def test_unhealthy_pod_behind_its_budget(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await become_unready(admin, namespace, "web-1")
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1)
    blocker = await blocked_by(kubernetes, drain_request(blocked, seconds=3))
    assert (blocker.reason, blocker.names) == ("unhealthy-behind-budget", ("web",))
    assert "web needs 1 and has 0" in blocker.message
    assert "AlwaysAllow" in blocker.message


async def test_unhealthy_pod_leaves_where_its_budget_allows_it(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await become_unready(admin, namespace, "web-1")
    allow = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1, **allow)
    assert (await drain(kubernetes, drain_request(blocked))).result.outcome == "drained"


async def test_pods_of_a_terminating_namespace_are_waited_for(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("ci-1", blocked.name, finalizers=["example.com/flush"])
    await admin.request("DELETE", f"/api/v1/namespaces/{namespace}")
    draining = asyncio.create_task(drain(kubernetes, drain_request(blocked)))
    path = f"/api/v1/namespaces/{namespace}/pods"
    await until(admin, path, "ci-1", lambda pod: pod is not None and "deletionTimestamp" in pod["metadata"])
    assert not draining.done()
    await patch(admin, pod_path(namespace, "ci-1"), {"metadata": {"finalizers": None}})
    report = await draining
    assert (report.result.outcome, report.result.gone) == ("drained", 1)


async def test_eviction_refused_in_a_terminating_namespace_is_no_missing_right(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("ci-1", blocked.name)
    cause = {"reason": "NamespaceTerminating", "message": "going"}
    refusal = status(403, "Forbidden", "pods ci-1 is forbidden: it is being terminated", causes=[cause])
    proxy.inject(respond(403, refusal), method="POST", path=EVICTION.format("ci-1"), times=None)
    blocker = await blocked_by(faulty, drain_request(blocked, seconds=3))
    assert blocker.reason == "namespace-terminating"


async def test_policy_that_denies_is_named_and_not_bypassed(admin, kubernetes, blocked, namespace, make_pod):
    name = f"frozen-{namespace}"
    here = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/eviction"],
    }
    group = "/apis/admissionregistration.k8s.io/v1"
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": {"matchExpressions": [here]}},
        "validations": [{"expression": "false", "message": "no evictions this week"}],
    }
    await admin.request(
        "POST", f"{group}/validatingadmissionpolicies", body={"metadata": {"name": name}, "spec": spec}
    )
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await admin.request(
        "POST",
        f"{group}/validatingadmissionpolicybindings",
        body={"metadata": {"name": name}, "spec": binding},
    )
    try:
        await make_pod("web-1", blocked.name)
        await _denies(admin, namespace, "web-1")
        blocker = await blocked_by(kubernetes, drain_request(blocked, seconds=3))
        assert (blocker.reason, blocker.names) == ("denied", (name,))
        assert "no evictions this week" in blocker.message
        assert await pod_names(admin, namespace) == {"web-1"}
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            await admin.request("DELETE", f"{group}/{kind}/{name}")


async def _denies(admin, namespace, name):
    """Wait until the server knows its new policy: dry runs change nothing."""
    async with asyncio.timeout(60):
        while True:
            try:
                await admin.request(
                    "POST",
                    f"{pod_path(namespace, name)}/eviction",
                    body={
                        "apiVersion": "policy/v1",
                        "kind": "Eviction",
                        "metadata": {"name": name, "namespace": namespace},
                        "deleteOptions": {"dryRun": ["All"]},
                    },
                    query={"dryRun": "All"},
                )
            except KubernetesError as error:
                if "ValidatingAdmissionPolicy" in error.message:
                    return
                raise
            await asyncio.sleep(0.1)


async def test_silent_node_ends_the_drain_early_and_nothing_is_forced(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("db-0", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "600"})
    down = reboot_annotations(600, str(uuid.uuid4())) | {"gpu-runbooks.dev/reboot-outcome": "never"}
    await patch(admin, f"/api/v1/nodes/{blocked.name}", {"metadata": {"annotations": down}})
    await until(
        admin,
        "/api/v1/nodes",
        blocked.name,
        lambda node: any(
            each["type"] == "Ready" and each["status"] != "True"
            for each in (node or {})["status"]["conditions"]
        ),
    )
    request = drain_request(blocked, seconds=120, policy=DrainPolicy(silent_node=timedelta(seconds=2)))
    async with asyncio.timeout(60):
        blocker = await blocked_by(faulty, request)
    assert blocker.reason == "dead-kubelet"
    assert blocker.attempts == 1
    assert proxy.count("DELETE") == 0
    assert await pod_names(admin, namespace) == {"db-0"}


def owned_set(name, kind, node, *, bound):
    """A workload that ignores cordon and taint: its pods are bound by their template, or tolerate all."""
    place = {"nodeName": node} if bound else {"nodeSelector": {"kubernetes.io/hostname": node}}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}, "annotations": {"gpu-runbooks.dev/stop-seconds": "0"}},
            "spec": place
            | {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "registry.example/app:1"}],
            },
        },
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(("kind", "bound"), [("StatefulSet", False), ("ReplicaSet", True)])
async def test_owner_that_ignores_the_block_never_counts_as_drained(
    admin, kubernetes, blocked, namespace, kind, bound
):
    path = f"/apis/apps/v1/namespaces/{namespace}/{kind.lower()}s"
    await admin.request("POST", path, body=owned_set("db", kind, blocked.name, bound=bound))
    try:
        await until(admin, path, "db", lambda each: (each or {}).get("status", {}).get("readyReplicas") == 1)
        report = await drain(kubernetes, drain_request(blocked, seconds=20))
        assert report.result.outcome == "blocked"
        (blocker,) = report.result.blockers
        assert blocker.reason == "respawning"
        owner = "Deployment db" if kind == "ReplicaSet" else "StatefulSet db"
        assert blocker.names == (owner,)
        assert report.result.gone >= 3
    finally:
        await admin.request("DELETE", f"{path}/db")


async def test_pod_leaves_by_itself_once_one_of_its_two_budgets_goes(
    faulty, proxy, admin, blocked, namespace, make_pod, monkeypatch
):
    monkeypatch.setattr(drain_eviction, "ATTEMPTS_AGAINST_TWO_BUDGETS", 1)
    for module in (drain_state, drain_calls):
        monkeypatch.setattr(module, "LOOK_AT_BUDGETS", 1.0)
    await make_pod("web-1", blocked.name, labels={"app": "web", "tier": "front"})
    await make_budget(admin, namespace, "by-app", {"app": "web"}, minAvailable=0)
    await make_budget(admin, namespace, "by-tier", {"tier": "front"}, minAvailable=0)
    looked = asyncio.Event()

    def beat(_):
        if proxy.count("GET", ".*poddisruptionbudgets") >= 3:
            looked.set()

    draining = asyncio.create_task(drain(faulty, drain_request(blocked), beat=beat))
    await looked.wait()
    assert proxy.count("POST", EVICTION.format("web-1")) == 1
    await admin.request("DELETE", f"{BUDGETS.format(namespace)}/by-tier")
    result = (await draining).result
    assert (result.outcome, result.evicted) == ("drained", 1)
    assert proxy.count("POST", EVICTION.format("web-1")) == 2


async def test_budgets_that_may_not_be_listed_are_said_to_be_unknown(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web", "tier": "front"})
    await make_budget(admin, namespace, "by-app", {"app": "web"}, minAvailable=0)
    await make_budget(admin, namespace, "by-tier", {"tier": "front"}, minAvailable=0)
    words = (
        'poddisruptionbudgets.policy is forbidden: User "w" cannot list resource "poddisruptionbudgets" in '
        f'API group "policy" in the namespace "{namespace}"'
    )
    refusal = respond(403, status(403, "Forbidden", words))
    proxy.inject(refusal, method="GET", path=".*poddisruptionbudgets", times=None)
    blocker = await blocked_by(faulty, drain_request(blocked, seconds=3))
    assert (blocker.reason, blocker.names) == ("two-budgets", ())
    assert "lacks verb `list` on `poddisruptionbudgets`" in blocker.message
