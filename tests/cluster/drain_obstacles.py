"""What tests put in the way of a drain."""

from cluster.conftest import until

from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH

BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"


EVICTION = ".*/pods/{}/eviction"


async def make_budget(admin, namespace, name, labels, **spec):
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}} | spec}
    await admin.request("POST", BUDGETS.format(namespace), body=body)
    await until(
        admin,
        BUDGETS.format(namespace),
        name,
        lambda budget: (budget or {}).get("status", {}).get("observedGeneration") == 1,
    )


async def blocked_by(kubernetes, request, **more):
    """The only blocker of a drain that ends blocked."""
    report = await drain(kubernetes, request, **more)
    assert report.result.outcome == "blocked"
    (blocker,) = report.result.blockers
    return blocker


async def patch(admin, path, body):
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def pod_path(namespace, name):
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


async def become_unready(admin, namespace, name):
    body = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await patch(admin, f"{pod_path(namespace, name)}/status", body)
