"""Decides how test pods end: kwok acts the end out, but cannot see the Node that a Pod runs on.

A test pod fails on a Node that carries the annotation `gpu-runbooks.dev/test-pod: fail`, and succeeds on
any other. The decision is written on the Pod, and the stage `test-pod-end` waits for it.
"""

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object

TEST_POD_SELECTOR = "app.kubernetes.io/component=gpu-test-pod"
NODE_ANNOTATION = "gpu-runbooks.dev/test-pod"
OUTCOME_ANNOTATION = "gpu-runbooks.dev/outcome"


async def decide_test_pods(kubernetes: Kubernetes) -> None:
    """Decide for every test pod as soon as it runs. Goes on until it is cancelled."""
    async for pods in kubernetes.follow("/api/v1/pods", label_selector=TEST_POD_SELECTOR):
        for pod in list(pods.values()):
            annotations = pod["metadata"].get("annotations") or {}
            if pod["status"].get("phase") == "Running" and OUTCOME_ANNOTATION not in annotations:
                await _decide(kubernetes, pod)


async def _decide(kubernetes: Kubernetes, pod: Object) -> None:
    try:
        node = await kubernetes.request("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}")
        failing = (node["metadata"].get("annotations") or {}).get(NODE_ANNOTATION) == "fail"
        outcome = "Failed" if failing else "Succeeded"
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        body = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {OUTCOME_ANNOTATION: outcome}}}
        await kubernetes.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    except KubernetesError as error:
        if error.status not in {0, 404, 409}:  # the Pod or its Node went, or the server is busy: seen again
            raise
