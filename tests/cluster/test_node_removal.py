"""The Node of a terminated machine goes, and no other, on a real API server as the cluster worker."""

import asyncio

import pytest
from cluster.blocks import annotate, patch, read
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.model.repair import RemoveNode
from gpu_runbooks.activities.nodes.removal import remove_node
from testbed.api_faults import respond, status
from testbed.nodes import gpu_node


async def test_the_node_of_the_machine_goes(admin, kubernetes, blocked):
    await remove_node(kubernetes, RemoveNode(identity=blocked))
    assert await admin.find(f"/api/v1/nodes/{blocked.name}") is None


async def test_gone_is_success(admin, faulty, proxy, blocked):
    await admin.request("DELETE", f"/api/v1/nodes/{blocked.name}")
    await remove_node(faulty, RemoveNode(identity=blocked))
    assert proxy.count("DELETE") == 0


@pytest.mark.parametrize(
    "changes",
    [{"uid": "u-other"}, {"provider_id": "aws:///us-west-2a/i-00000000000000002"}],
)
async def test_another_machine_of_the_name_is_left(admin, faulty, proxy, blocked, changes):
    await remove_node(faulty, RemoveNode(identity=blocked.model_copy(update=changes)))
    assert (await read(admin, blocked.name))["metadata"]["uid"] == blocked.uid
    assert proxy.count("DELETE") == 0


async def test_a_machine_without_identity_is_refused(admin, faulty, proxy, blocked):
    with pytest.raises(ApplicationError, match="kubectl delete node") as refused:
        await remove_node(faulty, RemoveNode(identity=blocked.model_copy(update={"provider_id": ""})))
    assert (refused.value.type, refused.value.non_retryable) == (errors.BAD_INPUT, True)
    assert proxy.count("DELETE") == 0


async def test_a_node_that_somebody_has_given_back_is_left(admin, faulty, proxy, blocked):
    await annotate(admin, blocked.name, **{names.BLOCK_ANNOTATION: None})
    await remove_node(faulty, RemoveNode(identity=blocked))
    assert (await read(admin, blocked.name))["metadata"]["uid"] == blocked.uid
    assert proxy.count("DELETE") == 0


async def test_a_machine_that_takes_the_name_just_before_the_deletion_is_left(admin, faulty, proxy, blocked):
    """The Node is made anew between our look and our call: the precondition of the UID holds it."""

    async def made_anew(_, forward):
        await admin.request("DELETE", f"/api/v1/nodes/{blocked.name}")
        other = gpu_node(blocked.name, "i-00000000000000002")
        other["metadata"]["annotations"] = {names.BLOCK_ANNOTATION: "of another incident"}
        await admin.request("POST", "/api/v1/nodes", body=other)
        return await forward()

    proxy.inject(made_anew, method="DELETE")
    await remove_node(faulty, RemoveNode(identity=blocked))
    assert (await read(admin, blocked.name))["metadata"]["uid"] != blocked.uid
    assert proxy.count("DELETE") == 1


async def test_it_goes_between_many_writers(admin, kubernetes, blocked):
    async def write():
        for number in range(200):
            if await admin.find(f"/api/v1/nodes/{blocked.name}") is None:
                return
            await patch(admin, blocked.name, {"metadata": {"labels": {"example.com/count": str(number)}}})

    writing = asyncio.gather(write(), write(), return_exceptions=True)
    await remove_node(kubernetes, RemoveNode(identity=blocked))
    await writing
    assert await admin.find(f"/api/v1/nodes/{blocked.name}") is None


async def test_one_that_is_held_by_a_finalizer_is_asked_once(admin, faulty, proxy, blocked):
    await patch(admin, blocked.name, {"metadata": {"finalizers": ["example.com/hold"]}})
    await remove_node(faulty, RemoveNode(identity=blocked))
    assert (await read(admin, blocked.name))["metadata"]["deletionTimestamp"]
    await remove_node(faulty, RemoveNode(identity=blocked))
    assert proxy.count("DELETE") == 1
    await patch(admin, blocked.name, {"metadata": {"finalizers": None}})


async def test_a_conflict_is_read_again(admin, faulty, proxy, blocked):
    proxy.inject(respond(409, status(409, "Conflict", "changed")), method="DELETE", times=2)
    await remove_node(faulty, RemoveNode(identity=blocked))
    assert await admin.find(f"/api/v1/nodes/{blocked.name}") is None
    assert proxy.count("DELETE") == 3
