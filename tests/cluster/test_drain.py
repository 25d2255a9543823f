"""Drains on a real API server: the real Eviction API, real budgets, kwok in the kubelets' place."""

import asyncio

import pytest
from cluster.conftest import block_request, drain_request, pod_names, until
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.draining.drain import drain as drain_with_records
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of


async def drain(kubernetes, request, **more):
    return (await drain_with_records(kubernetes, request, **more)).result


async def make_budget(admin, namespace, name, labels, healthy):
    """A budget that its controller has taken note of."""
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": healthy, "selector": {"matchLabels": labels}},
    }
    await admin.request("POST", path, body=body)
    await until(
        admin, path, name, lambda budget: (budget or {}).get("status", {}).get("observedGeneration") == 1
    )


async def deletion_begun(admin, namespace, name):
    return await until(
        admin,
        f"/api/v1/namespaces/{namespace}/pods",
        name,
        lambda pod: pod is not None and "deletionTimestamp" in pod["metadata"],
    )


async def test_pods_leave_and_the_node_is_listed_empty(admin, kubernetes, blocked, namespace, make_pod):
    for number in range(30):
        await make_pod(f"worker-{number}", blocked.name)
    await make_pod("bare-with-data", blocked.name, spec={"volumes": [{"name": "v", "emptyDir": {}}]})
    await make_pod("mirror", blocked.name, annotations={"kubernetes.io/config.mirror": "x"})
    result = await drain(kubernetes, drain_request(blocked))
    assert (result.outcome, result.gone, result.blockers) == ("drained", 31, ())
    assert result.skipped >= 1
    assert f"{namespace}/bare-with-data" in result.message
    assert await pod_names(admin, namespace) == {"mirror"}


async def test_daemon_set_pods_stay(admin, kubernetes, blocked, namespace, make_pod):
    # a real owner: the garbage collector would take a pod whose owner does not exist
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": blocked.name},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
        },
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    await admin.request("POST", path, body=body)
    await until(admin, path, "agent", lambda each: (each or {}).get("status", {}).get("numberReady") == 1)
    before = await pod_names(admin, namespace)
    await make_pod("worker", blocked.name)
    result = await drain(kubernetes, drain_request(blocked))
    assert (result.outcome, result.gone) == ("drained", 1)
    assert await pod_names(admin, namespace) == before


async def test_budget_blocks_by_name_and_the_other_pods_leave(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_budget(admin, namespace, "web-budget", {"app": "web"}, healthy=1)
    for number in range(20):
        await make_pod(f"free-{number}", blocked.name)
    beats = []
    result = await drain(kubernetes, drain_request(blocked, seconds=8), beat=beats.append)
    assert (result.outcome, result.gone, result.blocked_total) == ("blocked", 20, 1)
    (blocker,) = result.blockers
    assert (blocker.namespace, blocker.name) == (namespace, "web-1")
    assert "web-budget" in blocker.message
    assert blocker.attempts >= 2
    assert await pod_names(admin, namespace) == {"web-1"}
    (shown,) = beats[-1]["blockers"]
    assert (shown["name"], shown["reason"], shown["names"]) == ("web-1", "budget", ["web-budget"])
    assert shown["attempts"] >= 1


async def test_two_budgets_are_both_named(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("web-1", blocked.name, labels={"app": "web", "tier": "front"})
    await make_budget(admin, namespace, "by-app", {"app": "web"}, healthy=0)
    await make_budget(admin, namespace, "by-tier", {"tier": "front"}, healthy=0)
    result = await drain(kubernetes, drain_request(blocked, seconds=4))
    assert result.outcome == "blocked"
    assert (result.blockers[0].reason, result.blockers[0].names) == ("two-budgets", ("by-app", "by-tier"))
    assert await pod_names(admin, namespace) == {"web-1"}


async def test_budget_that_frees_up_lets_the_drain_end(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_budget(admin, namespace, "web-budget", {"app": "web"}, healthy=1)
    refused = asyncio.Event()

    def beat(progress):
        if any("web-budget" in blocker["names"] for blocker in progress["blockers"]):
            refused.set()

    draining = asyncio.create_task(drain(kubernetes, drain_request(blocked), beat=beat))
    await refused.wait()
    await admin.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/web-budget")
    assert (await draining).outcome == "drained"


async def test_accepted_eviction_is_not_the_end(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("slow", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "3"})
    draining = asyncio.create_task(drain(kubernetes, drain_request(blocked)))
    await deletion_begun(admin, namespace, "slow")
    assert not draining.done()
    assert (await draining).outcome == "drained"
    assert await pod_names(admin, namespace) == set()


async def test_late_pod_is_drained_too(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("slow", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "3"})
    draining = asyncio.create_task(drain(kubernetes, drain_request(blocked)))
    await deletion_begun(admin, namespace, "slow")
    path = f"/api/v1/namespaces/{namespace}/pods"
    late = {
        "metadata": {"name": "late", "annotations": {"gpu-runbooks.dev/stop-seconds": "0"}},
        "spec": {
            "nodeName": blocked.name,
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
        },
    }
    await admin.request("POST", path, body=late)
    result = await draining
    assert (result.outcome, result.gone) == ("drained", 2)
    assert await pod_names(admin, namespace) == set()


async def test_pod_reborn_on_another_node_is_left_alone(
    admin, kubernetes, blocked, make_node, namespace, make_pod
):
    elsewhere = await make_node()
    await make_pod("db-0", blocked.name, labels={"app": "db"})
    await make_budget(admin, namespace, "db", {"app": "db"}, healthy=1)
    refused = asyncio.Event()
    draining = asyncio.create_task(
        drain(kubernetes, drain_request(blocked), beat=lambda progress: progress["gone"] or refused.set())
    )
    await refused.wait()
    path = f"/api/v1/namespaces/{namespace}/pods"
    await admin.request("DELETE", f"{path}/db-0", body={"gracePeriodSeconds": 0})
    await until(admin, path, "db-0", lambda pod: pod is None)
    reborn = await make_pod("db-0", elsewhere["metadata"]["name"], labels={"app": "db"})
    assert (await draining).outcome == "drained"
    now = await admin.request("GET", f"{path}/db-0")
    assert now["metadata"]["uid"] == reborn["metadata"]["uid"]
    assert "deletionTimestamp" not in now["metadata"]


async def test_protected_and_own_pods_get_no_eviction(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("training", blocked.name, annotations={"karpenter.sh/do-not-disrupt": "true"})
    own = await make_pod("worker", blocked.name)
    request = drain_request(blocked, seconds=4)
    result = await drain(kubernetes, request, own_pod_uid=own["metadata"]["uid"])
    assert (result.outcome, result.blocked_total) == ("blocked", 2)
    reasons = {blocker.name: blocker.message for blocker in result.blockers}
    assert "karpenter.sh/do-not-disrupt=true" in reasons["training"]
    assert "worker that drains" in reasons["worker"]
    assert [blocker.attempts for blocker in result.blockers] == [0, 0]
    for name in ("training", "worker"):
        pod = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        assert "deletionTimestamp" not in pod["metadata"]


async def test_finalizer_is_named_and_stays(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("held", blocked.name, finalizers=["example.com/flush"])
    result = await drain(kubernetes, drain_request(blocked, seconds=5))
    assert result.outcome == "blocked"
    assert "finalizer example.com/flush" in result.blockers[0].message
    pod = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods/held")
    assert pod["metadata"]["finalizers"] == ["example.com/flush"]


async def test_missing_permission_fails_and_touches_nothing(installed, admin, blocked, namespace, make_pod):
    account = "reader"
    await admin.request(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", body={"metadata": {"name": account}}
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{namespace}-reader"}
    rules = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]}]
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await admin.request(
        "POST", f"{rbac}/clusterroles", body={"metadata": {"name": role["name"]}, "rules": rules}
    )
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    binding = {"metadata": {"name": role["name"]}, "roleRef": role, "subjects": [subject]}
    await admin.request("POST", f"{rbac}/clusterrolebindings", body=binding)
    await make_pod("worker", blocked.name)
    await installed.grant(account, namespace=namespace)
    async with installed.client(account) as reader:
        await _readable(reader)
        result = await drain(reader, drain_request(blocked))
    assert result.outcome == "failed"
    assert "`create` on `pods/eviction`" in result.message
    pod = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods/worker")
    assert "deletionTimestamp" not in pod["metadata"]


async def _readable(reader):
    """Wait until the server's authorizer knows the new role."""
    async with asyncio.timeout(60):
        while True:
            try:
                await reader.items("/api/v1/nodes")
                return
            except KubernetesError as error:
                if error.status != 403:
                    raise
                await asyncio.sleep(0.1)


async def test_no_drain_without_our_block(admin, kubernetes, node, namespace, make_pod):
    identity = identity_of(node)
    await make_pod("worker", identity.name)
    assert (await drain(kubernetes, drain_request(identity))).outcome == "cancelled"
    pod = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods/worker")
    assert "deletionTimestamp" not in pod["metadata"]


async def test_removing_the_block_cancels_the_drain(admin, kubernetes, blocked, make_pod):
    await make_pod("slow", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "25"})
    begun = asyncio.Event()
    draining = asyncio.create_task(
        drain(kubernetes, drain_request(blocked), beat=lambda progress: progress["remaining"] and begun.set())
    )
    await begun.wait()
    await admin.request(
        "PATCH",
        f"/api/v1/nodes/{blocked.name}",
        body={"spec": {"unschedulable": None}},
        content_type=MERGE_PATCH,
    )
    result = await draining
    assert (result.outcome, result.blocked_total) == ("cancelled", 1)


async def test_another_machine_is_not_drained(kubernetes, node):
    identity = identity_of(node)
    await block(kubernetes, block_request(identity))
    with pytest.raises(ApplicationError) as refused:
        await drain(kubernetes, drain_request(identity.model_copy(update={"uid": "another"})))
    assert refused.value.type == errors.NODE_CHANGED


async def test_cancellation_is_no_result(kubernetes, blocked, make_pod):
    await make_pod("slow", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "25"})
    begun = asyncio.Event()
    draining = asyncio.create_task(
        drain(kubernetes, drain_request(blocked), beat=lambda progress: progress["remaining"] and begun.set())
    )
    await begun.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
