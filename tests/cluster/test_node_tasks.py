"""NodeTasks on a real API server, with the test in the agent's place."""

import asyncio

import pytest
from cluster.conftest import soon, until
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.node_task import (
    GpuFacts,
    HardwareFacts,
    NodeTaskKind,
    ResetOutcome,
    RunNodeTask,
)
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.activities.nodes.node_tasks import (
    delete_node_task,
    for_history,
    name_of,
    result_of,
    run_node_task,
    task_of,
    tasks_path,
)

NAMESPACE = "gpu-runbooks"
TASKS = tasks_path(NAMESPACE)


@pytest.fixture
def request_for(node):
    def make(**changes):
        identity = identity_of(node)
        fields = {
            "identity": identity,
            "incident": f"node/test/{identity.name}",
            "run_id": "run-1",
            "kind": NodeTaskKind.RESET_GPU,
            "attempt": 1,
            "gpu_uuid": "GPU-1",
            "start_deadline": soon(20),
            "deadline": soon(40),
        }
        return RunNodeTask(**(fields | changes))

    return make


async def answer(admin, name, **status):
    """As the agent does it."""
    await admin.request("PATCH", f"{TASKS}/{name}/status", body={"status": status}, content_type=MERGE_PATCH)


async def tasks_of(admin, request):
    selector = f"{names.INCIDENT_LABEL}={names.digest(request.incident)}"
    return await admin.items(TASKS, label_selector=selector)


async def test_task_is_created_watched_and_deleted(admin, kubernetes, request_for):
    request = request_for()
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    task = await until(admin, TASKS, name_of(request), lambda task: task is not None)
    assert task["spec"]["nodeUID"] == request.identity.uid
    assert task["spec"]["bootID"] == request.identity.boot_id
    assert (task["spec"]["kind"], task["spec"]["gpuUUID"]) == ("ResetGPU", "GPU-1")
    await answer(admin, name_of(request), phase="Running")
    facts = {"efaInterfaces": 32, "gpus": [{"index": 0, "recoveryAction": 0}]}
    await answer(admin, name_of(request), phase="Succeeded", message="reset", facts=facts)
    result = await running
    assert (result.outcome, result.message) == ("succeeded", "reset")
    assert result.facts is not None
    assert (result.facts.efa_interfaces, result.facts.gpus[0].recovery_action) == (32, 0)
    for _ in range(2):
        await delete_node_task(kubernetes, NAMESPACE, result.task)
    assert await tasks_of(admin, request) == []


async def test_standing_task_is_adopted_and_no_other_is_made(admin, kubernetes, request_for):
    request = request_for()
    first = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    task = await until(admin, TASKS, name_of(request), lambda task: task is not None)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await answer(admin, name_of(request), phase="Failed", message="busy")
    assert (await again).outcome == "failed"
    late = await run_node_task(kubernetes, NAMESPACE, request_for(start_deadline=soon(-5), deadline=soon(-1)))
    assert (late.outcome, late.message) == ("failed", "busy")
    assert [each["metadata"]["uid"] for each in await tasks_of(admin, request)] == [task["metadata"]["uid"]]


async def test_many_workers_make_one_task(admin, kubernetes, request_for):
    request = request_for()
    running = [asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request)) for _ in range(5)]
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Succeeded")
    assert {(await each).outcome for each in running} == {"succeeded"}
    assert len(await tasks_of(admin, request)) == 1


async def test_task_that_no_agent_takes_is_withdrawn(admin, kubernetes, request_for):
    request = request_for(start_deadline=soon(2))
    result = await run_node_task(kubernetes, NAMESPACE, request)
    assert result.outcome == "not_started"
    assert await tasks_of(admin, request) == []


async def test_task_taken_at_the_last_moment_is_watched_on(admin, kubernetes, request_for):
    """The agent's write comes between our last look and our deletion: the deletion must not take it away."""
    request = request_for(start_deadline=soon(1))
    name = name_of(request)

    class TakenJustBeforeTheDeletion:
        """The real connection; the agent is faster by a moment."""

        def __getattr__(self, attribute):
            return getattr(kubernetes, attribute)

        async def request(self, method, path, **arguments):
            if method == "DELETE":
                await answer(admin, name, phase="Running")
            return await kubernetes.request(method, path, **arguments)

    running = asyncio.create_task(run_node_task(TakenJustBeforeTheDeletion(), NAMESPACE, request))
    await until(
        admin, TASKS, name, lambda task: bool(task) and task.get("status", {}).get("phase") == "Running"
    )
    await answer(admin, name, phase="Succeeded", message="reset after all")
    assert (await running).message == "reset after all"


async def test_start_deadline_in_the_past_creates_nothing(admin, kubernetes, request_for):
    request = request_for(start_deadline=soon(-1))
    assert (await run_node_task(kubernetes, NAMESPACE, request)).outcome == "not_started"
    assert await tasks_of(admin, request) == []


async def test_started_and_not_ended_is_timed_out(admin, kubernetes, request_for):
    request = request_for(deadline=soon(3))
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Running")
    assert (await running).outcome == "timed_out"
    assert len(await tasks_of(admin, request)) == 1


async def test_task_that_somebody_deletes_is_not_made_again(admin, kubernetes, request_for):
    request = request_for()
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Running")
    await admin.request("DELETE", f"{TASKS}/{name_of(request)}")
    result = await running
    assert (result.outcome, result.facts) == ("failed", None)
    assert await tasks_of(admin, request) == []


async def test_task_for_something_else_is_refused(admin, kubernetes, request_for):
    request = request_for()
    other = task_of(name_of(request), NAMESPACE, request_for(gpu_uuid="GPU-2"))
    await admin.request("POST", TASKS, body=other)
    with pytest.raises(ApplicationError, match="gpuUUID") as refused:
        await run_node_task(kubernetes, NAMESPACE, request)
    assert (refused.value.type, refused.value.non_retryable) == (errors.BAD_INPUT, True)


def test_names_tell_attempts_and_runs_apart(request_for):
    made = {
        name_of(request_for(**changes))
        for changes in ({}, {"attempt": 2}, {"run_id": "run-2"}, {"kind": NodeTaskKind.MEASURE})
    }
    assert len(made) == 4
    assert all(len(name) < 63 for name in made)


def test_facts_that_cannot_be_read_are_a_failure():
    task = {
        "metadata": {"name": "validate-1"},
        "status": {"phase": "Succeeded", "message": "fine", "facts": {"gpus": [{"index": "first"}]}},
    }
    result = result_of(task)
    assert (result.outcome, result.facts) == ("failed", None)
    assert "cannot be read" in result.message


@pytest.mark.parametrize(
    ("gpus", "pods", "told"),
    [
        pytest.param(16, 2, "all", id="a large node"),
        pytest.param(8, 48, "no pods", id="GPUs that many pods share"),
        pytest.param(64, 64, "nothing", id="all that the CRD lets through"),
    ],
)
def test_facts_are_as_large_as_a_payload_holds(gpus, pods, told):
    long = 36 if told != "nothing" else 64
    held = GpuFacts(
        index=0,
        uuid="GPU-".ljust(long + 4, "0"),
        serial="1" * (13 if told != "nothing" else 64),
        pod_uids=("p" * long,) * pods,
        host_processes=0,
        allocated_pod_uids=("p" * long,) * pods,
    )
    facts = HardwareFacts(boot_id="b", gpus=(held,) * gpus)
    kept = for_history(facts)
    unknown = {"pod_uids": None, "host_processes": None, "allocated_pod_uids": None}
    bare = held.model_copy(update=unknown)
    expected = {"all": facts, "no pods": facts.model_copy(update={"gpus": (bare,) * gpus}), "nothing": None}
    assert kept == expected[told]


@pytest.mark.parametrize("kind", [NodeTaskKind.MEASURE, NodeTaskKind.COLLECT])
async def test_task_that_only_measures_is_gone_with_its_result(admin, kubernetes, request_for, kind):
    request = request_for(kind=kind, gpu_uuid=None)
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Succeeded", message="healthy")
    assert (await running).outcome == "succeeded"
    assert await tasks_of(admin, request) == []
    # As a worker does that died before it reported the result.
    again = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Succeeded", message="healthy again")
    assert (await again).message == "healthy again"


async def test_measurement_that_does_not_end_is_gone_as_well(admin, kubernetes, request_for):
    request = request_for(kind=NodeTaskKind.MEASURE, gpu_uuid=None, deadline=soon(3))
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Running")
    assert (await running).outcome == "timed_out"
    assert await tasks_of(admin, request) == []


@pytest.mark.parametrize("kind", [NodeTaskKind.RESET_GPU, NodeTaskKind.REBOOT])
async def test_task_that_acts_stays_until_its_deletion_is_asked_for(admin, kubernetes, request_for, kind):
    request = request_for(kind=kind)
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    await answer(admin, name_of(request), phase="Succeeded")
    await running
    assert len(await tasks_of(admin, request)) == 1


@pytest.mark.parametrize("outcome", list(ResetOutcome))
async def test_every_outcome_of_a_reset_passes_the_server_and_comes_back(
    admin, kubernetes, request_for, outcome
):
    request = request_for()
    running = asyncio.create_task(run_node_task(kubernetes, NAMESPACE, request))
    await until(admin, TASKS, name_of(request), lambda task: task is not None)
    phase = "Succeeded" if outcome is ResetOutcome.DONE else "Failed"
    await answer(admin, name_of(request), phase=phase, outcome=outcome.value)
    result = await running
    assert (result.reset, result.outcome) == (outcome, phase.lower())


def test_an_outcome_that_nobody_knows_is_no_success():
    status = {"phase": "Succeeded", "message": "fine", "outcome": "improved", "facts": {"bootId": "b"}}
    result = result_of({"metadata": {"name": "reset-1"}, "status": status})
    assert (result.outcome, result.reset) == ("failed", None)
    assert "'improved' is not known here" in result.message
    assert result.facts is not None
