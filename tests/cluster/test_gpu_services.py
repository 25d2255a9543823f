"""GPU services stopped and started again, of real DaemonSets on a real API server, as the cluster worker."""

import asyncio

import pytest
from cluster.blocks import annotate, patch
from cluster.conftest import block_request, soon, until
from cluster.gpu_services import OPERATOR, annotation, daemon_set, operator_labels, pause, resume
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.gpu_services.labels import CLIENT, MANAGED, PAUSED, PREFIX
from gpu_runbooks.activities.gpu_services.services import pause_gpu_services, resume_gpu_services
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.api_faults import respond, status

PLUGIN, DCGM, EXPORTER = (f"{PREFIX}{each}" for each in ("device-plugin", "dcgm", "dcgm-exporter"))

PACE = 0.1
"""Seconds between two writes of each writer."""


@pytest.fixture
async def machine(kubernetes, make_node):
    """A blocked node of a GPU Operator."""
    identity = identity_of(await make_node(labels=OPERATOR))
    await block(kubernetes, block_request(identity))
    return identity


@pytest.fixture
async def serve(admin, namespace, machine):
    """Runs a service on the node by a DaemonSet, and waits until its pod runs there."""

    async def run(service, **spec):
        path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
        await admin.request("POST", path, body=daemon_set(service, machine.name, **spec))
        await until(admin, path, service, _is_ready)

    return run


def _is_ready(found):
    return bool(found) and found.get("status", {}).get("numberReady") == 1


async def services_on(admin, machine, namespace):
    pods = await admin.items(
        f"/api/v1/namespaces/{namespace}/pods", field_selector=f"spec.nodeName={machine.name}"
    )
    return {pod["metadata"]["labels"]["app"] for pod in pods}


async def label(admin, machine, **labels):
    await patch(admin, machine.name, {"metadata": {"labels": labels}})


async def test_services_stop_and_come_back(admin, kubernetes, machine, serve, namespace):
    for service in ("device-plugin", "dcgm", "driver"):
        await serve(service)
    paused = await pause_gpu_services(kubernetes, pause(machine, soon()))
    assert paused.outcome == "paused"
    assert {"device-plugin", "dcgm", "dcgm-exporter"} <= set(paused.services)
    assert await services_on(admin, machine, namespace) == {"driver"}
    labels = await operator_labels(admin, machine.name)
    stopped = {key for key, value in labels.items() if value == PAUSED}
    assert stopped == {key for key in MANAGED if OPERATOR.get(key) == "true"} | {CLIENT}
    assert labels[f"{PREFIX}driver"] == labels[f"{PREFIX}container-toolkit"] == "true"

    resumed = await resume_gpu_services(kubernetes, resume(machine))
    assert (set(resumed.restored), resumed.kept) == (set(paused.services), ())
    assert await operator_labels(admin, machine.name) == OPERATOR
    assert await annotation(admin, machine.name) is None
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    await until(admin, path, "device-plugin", _is_ready)


async def test_a_retry_adopts_and_writes_nothing(admin, faulty, proxy, machine):
    await pause_gpu_services(faulty, pause(machine, soon()))
    before, patches = await annotation(admin, machine.name), proxy.count("PATCH")
    again = await pause_gpu_services(faulty, pause(machine, soon()))
    assert again.outcome == "paused"
    assert (await annotation(admin, machine.name), proxy.count("PATCH")) == (before, patches)
    await resume_gpu_services(faulty, resume(machine))
    patches = proxy.count("PATCH")
    assert (await resume_gpu_services(faulty, resume(machine))).restored == ()
    assert proxy.count("PATCH") == patches
    assert await operator_labels(admin, machine.name) == OPERATOR


async def test_a_node_without_operator_is_left_alone(faulty, proxy, blocked):
    assert (await pause_gpu_services(faulty, pause(blocked, soon()))).outcome == "nothing"
    resumed = await resume_gpu_services(faulty, resume(blocked))
    assert (resumed.restored, resumed.kept, resumed.node_gone) == ((), (), False)
    assert proxy.count("PATCH") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {DCGM: "paused-for-driver-upgrade", "nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"},
        {PLUGIN: "paused-for-mig-change"},
        {"nvidia.com/mig.config.state": "pending"},
        {f"{PREFIX}container-toolkit": "paused-for-driver-upgrade"},
    ],
)
async def test_deferred_without_a_write_while_others_are_at_work(admin, faulty, proxy, machine, changes):
    await label(admin, machine, **changes)
    before = await operator_labels(admin, machine.name)
    paused = await pause_gpu_services(faulty, pause(machine, soon()))
    assert paused.outcome == "deferred"
    assert all(f"{key}={value}" in paused.message for key, value in changes.items())
    assert proxy.count("PATCH") == 0
    assert await operator_labels(admin, machine.name) == before
    assert await annotation(admin, machine.name) is None


async def test_services_that_would_not_come_back_are_not_stopped(
    admin, faulty, proxy, kubernetes, make_node, namespace
):
    """The operator's own default: its pods tolerate a taint of NVIDIA's, and ours keeps new ones off."""
    identity = identity_of(await make_node(labels=OPERATOR))
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    tolerations = [{"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu", "example.com/tests-only")]
    body = daemon_set("device-plugin", identity.name, tolerations=tolerations)
    await admin.request("POST", path, body=body)
    await until(admin, path, "device-plugin", _is_ready)
    await block(kubernetes, block_request(identity))
    paused = await pause_gpu_services(faulty, pause(identity, soon()))
    assert paused.outcome == "impossible"
    assert f"do not tolerate {names.BLOCK_TAINT}:NoSchedule: {namespace}/device-plugin-" in paused.message
    assert proxy.count("PATCH") == 0
    assert await operator_labels(admin, identity.name) == OPERATOR


async def test_a_service_that_does_not_stop_is_named_and_the_pause_can_be_taken_back(
    admin, kubernetes, machine, serve, namespace
):
    await serve("dcgm")
    (pod,) = await admin.items(f"/api/v1/namespaces/{namespace}/pods")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    await admin.request("PATCH", path, body=held, content_type=MERGE_PATCH)
    paused = await pause_gpu_services(kubernetes, pause(machine, soon(3)))
    assert paused.outcome == "failed"
    assert f"did not stop by the deadline: {namespace}/{pod['metadata']['name']}" in paused.message
    assert (await resume_gpu_services(kubernetes, resume(machine))).restored == paused.services
    assert await operator_labels(admin, machine.name) == OPERATOR


async def test_what_somebody_changed_meanwhile_stays(admin, kubernetes, machine):
    await pause_gpu_services(kubernetes, pause(machine, soon()))
    await label(admin, machine, **{PLUGIN: "false", DCGM: None})
    resumed = await resume_gpu_services(kubernetes, resume(machine))
    assert set(resumed.kept) == {f"{PLUGIN}=false", f"{DCGM} (removed)"}
    assert not {"device-plugin", "dcgm"} & set(resumed.restored)
    wanted = {key: value for key, value in OPERATOR.items() if key != DCGM} | {PLUGIN: "false"}
    assert await operator_labels(admin, machine.name) == wanted
    assert await annotation(admin, machine.name) is None


async def test_a_pause_that_a_driver_upgrade_holds_is_ended_after_it(admin, kubernetes, machine):
    """The driver manager appends to a value that it does not know, and puts it back at its end."""
    await pause_gpu_services(kubernetes, pause(machine, soon()))
    await label(admin, machine, **{PLUGIN: f"{PAUSED}_paused-for-driver-upgrade"})
    with pytest.raises(ApplicationError, match="paused-for-driver-upgrade") as held:
        await resume_gpu_services(kubernetes, resume(machine))
    assert (held.value.type, held.value.non_retryable) == (errors.SERVICES_HELD, False)
    assert (await operator_labels(admin, machine.name))[DCGM] == "true"
    await label(admin, machine, **{PLUGIN: PAUSED})
    assert (await resume_gpu_services(kubernetes, resume(machine))).restored == ("device-plugin",)
    assert await operator_labels(admin, machine.name) == OPERATOR
    assert await annotation(admin, machine.name) is None


async def test_an_upgrade_that_begins_after_the_pause_fails_it(admin, faulty, proxy, machine):
    async def upgrade(_, forward):
        await label(admin, machine, **{"nvidia.com/gpu-driver-upgrade-state": "cordon-required"})
        return await forward()

    proxy.inject(upgrade, path="/api/v1/pods", watch=False, skip=1)  # the list of the wait, after the write
    paused = await pause_gpu_services(faulty, pause(machine, soon()))
    assert paused.outcome == "failed"
    assert "gpu-driver-upgrade-state=cordon-required" in paused.message
    assert "to be taken back" in paused.message


async def test_a_pause_left_behind_is_taken_over_with_its_true_values(admin, kubernetes, machine):
    """The incident before died with its pause; a second one finds labels that show nothing but that pause."""
    await pause_gpu_services(kubernetes, pause(machine, soon(), run_id="run-0", incident="node/test/old"))
    await label(admin, machine, **{EXPORTER: "false"})  # by a person, between the two
    assert (await pause_gpu_services(kubernetes, pause(machine, soon()))).outcome == "paused"
    late = await resume_gpu_services(kubernetes, resume(machine, "node/test/old", "run-0"))
    assert late.restored == ()
    assert "run run-1" in late.kept[0]
    assert (await operator_labels(admin, machine.name))[PLUGIN] == PAUSED
    await resume_gpu_services(kubernetes, resume(machine))
    assert await operator_labels(admin, machine.name) == OPERATOR | {EXPORTER: "false"}


async def test_the_pause_of_an_incident_that_holds_the_node_is_not_taken_over(admin, faulty, proxy, machine):
    await pause_gpu_services(faulty, pause(machine, soon()))
    before, patches = await annotation(admin, machine.name), proxy.count("PATCH")
    other = await pause_gpu_services(faulty, pause(machine, soon(), run_id="run-2"))
    assert other.outcome == "deferred"
    assert "run run-1, which holds the node" in other.message
    assert (await annotation(admin, machine.name), proxy.count("PATCH")) == (before, patches)


async def test_an_annotation_that_cannot_be_read_is_left(admin, faulty, proxy, machine):
    await annotate(admin, machine.name, **{names.PAUSED_SERVICES_ANNOTATION: "who knows"})
    assert (await pause_gpu_services(faulty, pause(machine, soon()))).outcome == "deferred"
    resumed = await resume_gpu_services(faulty, resume(machine))
    assert (resumed.restored, "cannot be read" in resumed.kept[0]) == ((), True)
    assert proxy.count("PATCH") == 0


async def test_an_annotation_that_somebody_broke_leaves_no_service_stopped(admin, kubernetes, machine):
    before = await operator_labels(admin, machine.name)
    await pause_gpu_services(kubernetes, pause(machine, soon()))
    await annotate(admin, machine.name, **{names.PAUSED_SERVICES_ANNOTATION: "who knows"})
    resumed = await resume_gpu_services(kubernetes, resume(machine))
    assert "cannot be read" in resumed.kept[0]
    assert before.items() <= (await operator_labels(admin, machine.name)).items()
    assert await annotation(admin, machine.name) == "who knows"


async def test_an_annotation_that_somebody_removed_leaves_no_service_stopped(admin, kubernetes, machine):
    await label(admin, machine, **{CLIENT: "true"})
    await pause_gpu_services(kubernetes, pause(machine, soon()))
    await annotate(admin, machine.name, **{names.PAUSED_SERVICES_ANNOTATION: None})
    await resume_gpu_services(kubernetes, resume(machine))
    assert await operator_labels(admin, machine.name) == OPERATOR | {CLIENT: "true"}


async def test_a_node_that_goes_in_between_is_success(admin, kubernetes, machine):
    await pause_gpu_services(kubernetes, pause(machine, soon()))
    await admin.request("DELETE", f"/api/v1/nodes/{machine.name}")
    assert (await resume_gpu_services(kubernetes, resume(machine))).node_gone


async def test_another_machine_of_the_name_is_left(faulty, proxy, machine):
    other = machine.model_copy(update={"uid": "u-other"})
    with pytest.raises(ApplicationError) as refused:
        await pause_gpu_services(faulty, pause(other, soon()))
    assert refused.value.type == errors.NODE_CHANGED
    assert (await resume_gpu_services(faulty, resume(other))).node_gone
    assert proxy.count("PATCH") == 0


async def test_conflicts_are_read_again(admin, faulty, proxy, machine):
    proxy.inject(respond(409, status(409, "Conflict", "changed")), method="PATCH", times=3)
    assert (await pause_gpu_services(faulty, pause(machine, soon()))).outcome == "paused"
    proxy.inject(respond(409, status(409, "Conflict", "changed")), method="PATCH", times=3)
    await resume_gpu_services(faulty, resume(machine))
    assert await operator_labels(admin, machine.name) == OPERATOR


async def until_it_stands(act, *arguments):
    """As Temporal tries it: as a whole, again and again."""
    while True:
        try:
            return await act(*arguments)
        except ApplicationError as error:
            if error.type != errors.NOT_VERIFIED:
                raise


async def test_many_writers_find_what_they_wrote(admin, kubernetes, machine):
    stop = asyncio.Event()

    async def count(key):
        number = 0
        while not stop.is_set():
            number += 1
            await patch(admin, machine.name, {"metadata": {"labels": {key: str(number)}}})
            await asyncio.sleep(PACE)
        return str(number)

    keys = ("nvidia.com/gpu.count", "nvidia.com/example")
    writing = asyncio.gather(*(count(key) for key in keys))
    for cycle in range(4):
        run = f"run-{cycle}"
        paused = await until_it_stands(pause_gpu_services, kubernetes, pause(machine, soon(), run_id=run))
        assert paused.outcome == "paused"
        assert (await operator_labels(admin, machine.name))[PLUGIN] == PAUSED
        await until_it_stands(resume_gpu_services, kubernetes, resume(machine, run_id=run))
    stop.set()
    last = await writing
    assert await operator_labels(admin, machine.name) == OPERATOR | dict(zip(keys, last, strict=True))
