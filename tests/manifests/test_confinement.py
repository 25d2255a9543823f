"""What the cluster worker's own token cannot bring about: a privileged pod, anywhere, in any way."""

import pytest

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError

OURS = "gpu-runbooks"
TESTS = "gpu-runbooks-tests"
ELSEWHERE = "kube-system"

CONTAINER = {"name": "main", "image": "registry.example/app:1"}
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
KEPT = ("labels", "annotations", "finalizers", "ownerReferences")

CHECKPOINT = "gpu-runbooks.dev/checkpoint-requested"

PRIVILEGED = {
    "privileged": {"containers": [{**CONTAINER, "securityContext": {"privileged": True}}]},
    "privileged at its start": {
        "containers": [CONTAINER],
        "initContainers": [{**CONTAINER, "name": "first", "securityContext": {"privileged": True}}],
    },
    "the host's processes": {"containers": [CONTAINER], "hostPID": True},
    "the host's network": {"containers": [CONTAINER], "hostNetwork": True},
    "the host's files": {
        "containers": [CONTAINER],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    },
    "a capability": {
        "containers": [{**CONTAINER, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]
    },
}


def pods(namespace):
    return f"/api/v1/namespaces/{namespace}/pods"


def pod(spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "forged-"}, "spec": spec}


@pytest.fixture
async def privileged(admin):
    """A privileged pod where they are admitted, as the node agents are."""
    spec = PRIVILEGED["privileged"]
    made = await admin.request("POST", pods(OURS), body=pod({**spec, "automountServiceAccountToken": False}))
    yield made
    query = {"gracePeriodSeconds": "0"}
    await admin.request("DELETE", f"{pods(OURS)}/{made['metadata']['name']}", query=query)


@pytest.mark.parametrize("kind", PRIVILEGED)
async def test_no_privileged_pod_where_the_test_pods_are(worker, kind):
    with pytest.raises(KubernetesError, match="PodSecurity") as refused:
        await worker.request("POST", pods(TESTS), body=pod(PRIVILEGED[kind]))
    assert refused.value.status == 403


@pytest.mark.parametrize("namespace", [OURS, ELSEWHERE, "default"])
async def test_no_pod_at_all_elsewhere(worker, namespace):
    with pytest.raises(KubernetesError, match="cannot create resource") as refused:
        await worker.request("POST", pods(namespace), body=pod({"containers": [CONTAINER]}))
    assert refused.value.status == 403


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"containers": [{**CONTAINER, "image": "registry.example/of-mine:1"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"metadata": {"labels": {"app.kubernetes.io/component": "node-agent"}}},
        {"metadata": {"finalizers": ["example.com/hold"]}},
        {"metadata": {"annotations": {"example.com/of-others": "changed"}}},
        {"metadata": {"annotations": {CHECKPOINT: "a", "karpenter.sh/do-not-disrupt": None}}},
    ],
)
async def test_a_pod_that_stands_is_not_changed(admin, worker, privileged, changes):
    path = f"{pods(OURS)}/{privileged['metadata']['name']}"
    given = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
    before = await admin.request("PATCH", path, body=given, content_type=MERGE_PATCH)
    with pytest.raises(KubernetesError, match="the cluster worker may") as refused:
        await worker.request("PATCH", path, body=changes, content_type=STRATEGIC_MERGE_PATCH)
    assert refused.value.status == 403
    after = await admin.request("GET", path)
    assert all(after["metadata"].get(key) == before["metadata"].get(key) for key in KEPT)
    assert after["spec"]["containers"] == before["spec"]["containers"]
    assert "activeDeadlineSeconds" not in after["spec"]


async def test_a_pod_can_be_asked_to_checkpoint_and_the_request_withdrawn(worker, privileged):
    path = f"{pods(OURS)}/{privileged['metadata']['name']}"
    for value, expected in (("token", {CHECKPOINT: "token"}), (None, {})):
        body = {"metadata": {"annotations": {CHECKPOINT: value}}}
        changed = await worker.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        assert (changed["metadata"].get("annotations") or {}) == expected
