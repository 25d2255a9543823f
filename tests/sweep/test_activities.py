"""What a sweep reads and mends on a real API server, with the rights of the cluster worker."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import block_request, change_taints
from cluster.gpu_services import OPERATOR
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import names
from gpu_runbooks.activities.gpu_services.labels import PAUSED, PREFIX, PauseMarker, labels_of
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.node_task import NodeTaskKind, RunNodeTask
from gpu_runbooks.activities.model.sweep import LookAtNodes, NextPage
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import annotations_of, identity_of, is_our_taint, observe, taints_of
from gpu_runbooks.activities.nodes.node_tasks import task_of, tasks_path
from testbed.api_faults import respond, status
from testbed.control_plane import NAMESPACE

TAINT = {"key": names.BLOCK_TAINT, "value": "xid-79", "effect": "NoSchedule"}
PLUGIN = f"{PREFIX}device-plugin"


@pytest.fixture
def ask(sweeping):
    """Calls an activity, as its worker does."""

    async def call(name, request):
        return await ActivityEnvironment().run(getattr(sweeping.sweep, name), request)

    return call


async def read(admin, name):
    return await admin.request("GET", f"/api/v1/nodes/{name}")


async def change(admin, name, body):
    await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)


async def all_nodes(ask):
    found, token, pages = {}, "", 0
    while True:
        page = await ask("list_marked_nodes", NextPage(token=token))
        assert len(page.model_dump_json()) < 16 * 1024
        found |= {node.name: node for node in page.nodes}
        pages += 1
        if not (token := page.more):
            return found, pages


async def test_only_marked_nodes_are_listed_whatever_they_are_marked_by(ask, admin, make_node, kubernetes):
    names_of = [(await make_node())["metadata"]["name"] for _ in range(5)]
    plain, tainted, claimed, paused, blocked = names_of
    await change_taints(admin, tainted, lambda taints: [*taints, TAINT])
    await change(admin, claimed, {"metadata": {"annotations": {names.REPLACES_ANNOTATION: "node/x/y"}}})
    await change(admin, paused, {"metadata": {"labels": {PLUGIN: PAUSED}}})
    await block(kubernetes, block_request(identity_of(await read(admin, blocked)), hold=True))
    found, _ = await all_nodes(ask)
    assert plain not in found
    assert found[tainted].taint
    assert found[claimed].replaces == "node/x/y"
    assert found[paused].pause == "bare"
    assert (found[blocked].marker, found[blocked].run_id) == ("held", "run-1")


async def test_leftovers_go_and_a_cordon_of_somebody_else_stays(ask, admin, make_node):
    name = (await make_node(spec={"unschedulable": True}))["metadata"]["name"]
    await change_taints(admin, name, lambda taints: [*taints, TAINT])
    annotations = {names.REPLACES_ANNOTATION: "node/x/y", "karpenter.sh/do-not-disrupt": "true"}
    await change(admin, name, {"metadata": {"annotations": annotations}})
    seen = (await all_nodes(ask))[0][name]
    mended = await ask("clear_leftovers", seen)
    node = await read(admin, name)
    assert len(mended.done) == 2
    assert not any(map(is_our_taint, taints_of(node)))
    assert names.REPLACES_ANNOTATION not in annotations_of(node)
    assert node["spec"]["unschedulable"] is True
    assert annotations_of(node)["karpenter.sh/do-not-disrupt"] == "true"
    assert any(taint["key"] == "example.com/tests-only" for taint in taints_of(node))
    assert (await ask("clear_leftovers", seen)).changed, "a second time there is nothing to do"


async def test_an_incident_that_blocked_meanwhile_keeps_its_block(ask, admin, make_node, kubernetes):
    name = (await make_node())["metadata"]["name"]
    await change_taints(admin, name, lambda taints: [*taints, TAINT])
    seen = (await all_nodes(ask))[0][name]
    await block(kubernetes, block_request(identity_of(await read(admin, name))))
    assert (await ask("clear_leftovers", seen)).changed
    node = await read(admin, name)
    assert observe(node, f"node/test/{name}", "run-1").blocked


async def test_a_marked_node_is_never_given_back(ask, admin, make_node, kubernetes):
    name = (await make_node())["metadata"]["name"]
    await block(kubernetes, block_request(identity_of(await read(admin, name))))
    seen = (await all_nodes(ask))[0][name]
    assert (await ask("clear_leftovers", seen)).changed
    assert any(map(is_our_taint, taints_of(await read(admin, name))))


async def test_paused_services_run_again_and_a_newer_pause_stays(ask, admin, make_node):
    name = (await make_node(labels=OPERATOR))["metadata"]["name"]
    old = PauseMarker(incident="node/x/y", run_id="old", labels={PLUGIN: "true"})
    await change(admin, name, _paused(old))
    seen = (await all_nodes(ask))[0][name]
    new = old.model_copy(update={"run_id": "new"})
    await change(admin, name, _paused(new))
    assert (await ask("resume_left_services", seen)).changed
    assert labels_of(await read(admin, name))[PLUGIN] == PAUSED
    mended = await ask("resume_left_services", (await all_nodes(ask))[0][name])
    assert mended.done == ("device-plugin",)
    node = await read(admin, name)
    assert labels_of(node)[PLUGIN] == "true"
    assert names.PAUSED_SERVICES_ANNOTATION not in annotations_of(node)


def _paused(pause):
    annotations = {names.PAUSED_SERVICES_ANNOTATION: pause.model_dump_json()}
    return {"metadata": {"labels": {PLUGIN: PAUSED}, "annotations": annotations}}


async def test_a_task_is_deleted_as_it_was_seen_or_not_at_all(ask, admin, make_node):
    node = await make_node()
    request = RunNodeTask(
        identity=identity_of(node),
        incident=f"node/test/{node['metadata']['name']}",
        run_id="run-1",
        kind=NodeTaskKind.MEASURE,
        attempt=1,
        start_deadline=datetime.now(UTC) + timedelta(hours=1),
        deadline=datetime.now(UTC) + timedelta(hours=2),
    )
    name = f"sweep-{node['metadata']['name']}"
    await admin.request("POST", tasks_path(NAMESPACE), body=task_of(name, NAMESPACE, request))
    seen = await _work(ask, "list_node_tasks", name)
    assert (seen.incident, seen.runs) == (request.incident, False)
    path = f"{tasks_path(NAMESPACE)}/{name}/status"
    await admin.request("PATCH", path, body={"status": {"phase": "Running"}}, content_type=MERGE_PATCH)
    assert (await ask("delete_work", seen)).changed, "an agent has taken it meanwhile"
    seen = await _work(ask, "list_node_tasks", name)
    assert seen.runs
    assert (await ask("delete_work", seen)).done
    assert (await ask("delete_work", seen)).changed
    assert await admin.find(f"{tasks_path(NAMESPACE)}/{name}") is None


async def _work(ask, activity, name):
    token = ""
    while True:
        page = await ask(activity, NextPage(token=token))
        for work in page.works:
            if work.name == name:
                return work
        token = page.more
        assert token, f"{name} is not listed"


async def test_machines_behind_names(ask, make_node):
    node = identity_of(await make_node())
    seen = await ask("look_at_nodes", LookAtNodes(names=(node.name, "no-such-node")))
    assert [(each.name, each.instance_id) for each in seen.machines] == [(node.name, node.instance_id)]


async def test_a_list_that_is_too_old_is_said_and_not_guessed(ask):
    with pytest.raises(ApplicationError):
        await ask("list_marked_nodes", NextPage(token="bm8gdG9rZW4"))


async def test_a_list_that_grew_too_old_goes_on_where_the_server_says(
    sweeping, faulty, proxy, admin, make_node, monkeypatch
):
    monkeypatch.setattr("gpu_runbooks.activities.sweep.cluster.AT_A_TIME", 1)
    monkeypatch.setattr("gpu_runbooks.activities.sweep.cluster.ENOUGH", 1)
    marked = {(await make_node())["metadata"]["name"] for _ in range(2)}
    for name in marked:
        await change_taints(admin, name, lambda taints: [*taints, TAINT])
    sweeping.sweep._kubernetes = faulty  # by way of the proxy

    async def call(name, request):
        return await ActivityEnvironment().run(getattr(sweeping.sweep, name), request)

    first = await call("list_marked_nodes", NextPage())
    expired = status(410, "Expired", "the provided continue parameter is too old")
    proxy.inject(respond(410, expired | {"metadata": {"continue": first.more}}), path="/api/v1/nodes")
    found, token = {node.name for node in first.nodes}, "one that has expired"
    while token:
        page = await call("list_marked_nodes", NextPage(token=token))
        found |= {node.name for node in page.nodes}
        token = page.more
    assert marked <= found


async def test_pages_follow_each_other(ask, admin, make_node, monkeypatch):
    monkeypatch.setattr("gpu_runbooks.activities.sweep.cluster.AT_A_TIME", 1)
    monkeypatch.setattr("gpu_runbooks.activities.sweep.cluster.ENOUGH", 1)
    marked = {(await make_node())["metadata"]["name"] for _ in range(2)}
    await asyncio.gather(*(change_taints(admin, name, lambda all_of: [*all_of, TAINT]) for name in marked))
    found, pages = await all_nodes(ask)
    assert marked <= set(found)
    assert pages >= 2
