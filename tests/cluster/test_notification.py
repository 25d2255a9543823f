"""Notices to the owners of workloads, as Events of a real API server by the cluster worker's own token."""

from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import until

from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.activities.model.notify import KubernetesObject, NotifyOwner
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.activities.notices.notice import REASON, event
from gpu_runbooks.activities.notices.notification import notify_owner
from gpu_runbooks.activities.notices.owners import itself

GPU = "GPU-11111111-2222-3333-4444-555555555555"
JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "name": "train",
    "uid": "u-1",
    "controller": True,
}


def gpus(amount="8"):
    resources = {"limits": {"nvidia.com/gpu": amount}}
    return {"containers": [{"name": "main", "image": "registry.example/app:1", "resources": resources}]}


def fault(**changes):
    now = datetime.now(UTC)
    fields = {
        "source": FaultSource.XID,
        "code": "31",
        "entity": Entity(kind="gpu", uuid=GPU),
        "summary": "MMU fault\x1b[31m\n" + "x" * 3000,
        "first_seen": now - timedelta(minutes=1),
        "last_seen": now + timedelta(minutes=1),
        "fingerprint": "f-1",
        "reporter": "alertmanager",
    }
    return Fault(**(fields | changes))


def request(node, **changes):
    fields = {"incident": "node/test/n", "fault": fault(), "nodes": (identity_of(node),)}
    return NotifyOwner(**(fields | changes))


async def events(admin, namespace):
    """Our Events in a namespace, by the object that they are about."""
    found = await admin.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return {
        f"{each['regarding']['kind']}/{each['regarding']['name']}": each
        for each in found
        if each.get("reason") == REASON
    }


async def test_pods_with_gpus_and_their_owner_have_the_event_once(
    admin, kubernetes, node, namespace, make_pod
):
    name = node["metadata"]["name"]
    await make_pod("train-0", name, spec=gpus("4"), ownerReferences=[JOB])
    await make_pod("train-1", name, spec=gpus("4"), ownerReferences=[JOB])
    await make_pod("logs", name)
    for _ in range(2):
        told = await notify_owner(kubernetes, request(node))
        assert told.total == 3
        assert told.objects[0] == f"PyTorchJob {namespace}/train"
        assert told.left_out == ""
    found = await events(admin, namespace)
    assert set(found) == {"PyTorchJob/train", "Pod/train-0", "Pod/train-1"}
    note = found["Pod/train-0"]["note"]
    assert found["Pod/train-0"]["type"] == "Warning"
    assert f"Xid 31 on GPU {GPU} of node {name}" in note
    assert note.isprintable()
    assert found["PyTorchJob/train"]["regarding"]["uid"] == "u-1"
    listed = await admin.items(f"/api/v1/namespaces/{namespace}/events", field_selector=f"reason={REASON}")
    assert len(listed) == 3, "kubectl describe reads the same Events by the older API"


async def test_only_the_pod_that_the_fault_names_is_told(admin, kubernetes, node, namespace, make_pod):
    for each in ("one", "other"):
        await make_pod(each, node["metadata"]["name"], spec=gpus("1"))
    told = await notify_owner(kubernetes, request(node, fault=fault(pod=f"{namespace}/one")))
    assert told.objects == (f"Pod {namespace}/one",)
    assert set(await events(admin, namespace)) == {"Pod/one"}


async def test_the_deployment_is_told_by_its_uid(admin, kubernetes, node, namespace):
    labels = {"app": "serve"}
    placed = {"nodeName": node["metadata"]["name"], **gpus("1")}
    template = {"metadata": {"labels": labels}, "spec": placed}
    body = {
        "metadata": {"name": "serve"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    made = await admin.request("POST", path, body=body)
    await until(admin, path, "serve", lambda each: bool(each) and each["status"].get("replicas") == 1)
    told = await notify_owner(kubernetes, request(node))
    assert told.objects[0] == f"Deployment {namespace}/serve"
    found = await events(admin, namespace)
    assert found["Deployment/serve"]["regarding"]["uid"] == made["metadata"]["uid"]


async def test_nobody_there_is_a_result(kubernetes, node):
    told = await notify_owner(kubernetes, request(node))
    assert (told.total, told.objects) == (0, ())
    assert "no pod with GPUs" in told.left_out


async def test_pods_of_another_time_are_not_to_blame(admin, kubernetes, node, namespace, make_pod):
    await make_pod("later", node["metadata"]["name"], spec=gpus("1"))
    hour = datetime.now(UTC) - timedelta(hours=1)
    told = await notify_owner(kubernetes, request(node, fault=fault(first_seen=hour, last_seen=hour)))
    assert told.total == 0
    assert await events(admin, namespace) == {}


async def test_a_job_is_told_although_its_pods_are_gone(admin, kubernetes, node, namespace, make_pod):
    await make_pod("bystander", node["metadata"]["name"], spec=gpus("1"))
    job = KubernetesObject(
        api_version="kubeflow.org/v1", kind="PyTorchJob", namespace=namespace, name="train", uid="u-1"
    )
    told = await notify_owner(kubernetes, request(node, job=job, node_count=77))
    assert told.objects == (f"PyTorchJob {namespace}/train",)
    found = await events(admin, namespace)
    assert set(found) == {"PyTorchJob/train"}
    assert "76 more nodes" in found["PyTorchJob/train"]["note"]


async def test_a_namespace_that_is_gone_is_no_error(kubernetes, node):
    job = KubernetesObject(api_version="batch/v1", kind="Job", namespace="gone-by-now", name="train")
    told = await notify_owner(kubernetes, request(node, job=job))
    assert told.total == 0
    assert "gone-by-now" in told.left_out


@pytest.mark.parametrize(
    "forged",
    [{"reason": "NodeNotReady"}, {"reportingController": "kubelet"}, {"regarding": {"kind": "Node"}}],
)
async def test_no_other_event_can_be_written(admin, kubernetes, node, namespace, make_pod, forged):
    pod = await make_pod("train-0", node["metadata"]["name"], spec=gpus())
    body = event(itself(pod), request(node), datetime.now(UTC))
    for key, value in forged.items():
        body[key] = body[key] | value if isinstance(value, dict) else value
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    with pytest.raises(KubernetesError, match="the cluster worker may") as refused:
        await kubernetes.request("POST", path, body=body)
    assert refused.value.status == 403
    assert await events(admin, namespace) == {}
