"""The control plane is a real one: it refuses, schedules and repairs as a cluster would."""

import asyncio

import pytest

from gpu_runbooks.activities.kubernetes.client import KubernetesError
from testbed.control_plane import ControlPlane
from testbed.nodes import gpu_node, reboot_annotations


@pytest.fixture
async def admin(control_plane: ControlPlane):
    async with control_plane.client() as kubernetes:
        yield kubernetes


async def until(kubernetes, path, wanted):
    """The object as soon as `wanted` holds for it."""
    async with asyncio.timeout(60):
        collection, _, name = path.rpartition("/")
        async for objects in kubernetes.follow(collection, field_selector=f"metadata.name={name}"):
            for found in objects.values():
                if wanted(found):
                    return found
    raise AssertionError(f"{path} is gone")


@pytest.fixture
async def node(admin):
    """A registered, Ready node of the test's own."""
    created = await admin.request("POST", "/api/v1/nodes", body=gpu_node("testbed-n1", "i-0aa0000000000001"))
    yield await until(admin, "/api/v1/nodes/testbed-n1", is_ready)
    await admin.request("DELETE", f"/api/v1/nodes/{created['metadata']['name']}")


def is_ready(node):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


async def test_an_identity_without_a_role_is_refused(control_plane, admin):
    account = {"metadata": {"name": "nobody"}}
    await admin.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=account)
    await control_plane.grant("nobody", namespace="default")
    async with control_plane.client("nobody") as nobody:
        with pytest.raises(KubernetesError) as refused:
            await nobody.items("/api/v1/nodes")
    assert refused.value.status == 403


async def test_a_reboot_gives_a_ready_node_a_new_boot_id(admin, node):
    before = node["status"]["nodeInfo"]["bootID"]
    annotate = {"metadata": {"annotations": reboot_annotations(1, "boot-2")}}
    path = "/api/v1/nodes/testbed-n1"
    await admin.request("PATCH", path, body=annotate, content_type="application/merge-patch+json")
    await until(admin, path, lambda seen: not is_ready(seen))
    after = await until(admin, path, is_ready)
    assert before != "boot-2"
    assert after["status"]["nodeInfo"]["bootID"] == "boot-2"
    assert after["metadata"]["uid"] == node["metadata"]["uid"]


async def test_a_reboot_that_changes_nothing(admin, node):
    annotations = {"gpu-runbooks.dev/reboot": "1", "gpu-runbooks.dev/reboot-outcome": "nothing"}
    path = "/api/v1/nodes/testbed-n1"
    body = {"metadata": {"annotations": annotations}}
    await admin.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    done = await until(
        admin, path, lambda seen: "gpu-runbooks.dev/reboot" not in seen["metadata"]["annotations"]
    )
    assert is_ready(done)
    assert done["status"]["nodeInfo"]["bootID"] == node["status"]["nodeInfo"]["bootID"]


@pytest.mark.parametrize("outcome", ["Succeeded", "Failed"])
async def test_a_test_pod_ends_as_its_node_says(admin, node, outcome):
    name = node["metadata"]["name"]
    if outcome == "Failed":
        body = {"metadata": {"annotations": {"gpu-runbooks.dev/test-pod": "fail"}}}
        path = f"/api/v1/nodes/{name}"
        await admin.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    pod = {
        "metadata": {
            "name": f"test-{outcome.lower()}",
            "labels": {"app.kubernetes.io/component": "gpu-test-pod"},
        },
        "spec": {
            "nodeName": name,
            "containers": [{"name": "test", "image": "test"}],
            "restartPolicy": "Never",
        },
    }
    pods = "/api/v1/namespaces/default/pods"
    async with asyncio.timeout(60):  # the controller-manager makes the namespace's ServiceAccount
        await until(admin, "/api/v1/namespaces/default/serviceaccounts/default", bool)
    await admin.request("POST", pods, body=pod)
    ended = await until(
        admin,
        f"{pods}/{pod['metadata']['name']}",
        lambda seen: seen["status"]["phase"] in {"Succeeded", "Failed"},
    )
    assert ended["status"]["phase"] == outcome
