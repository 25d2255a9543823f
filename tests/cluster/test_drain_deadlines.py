"""Time in a drain: grace periods at its end, workers that take over, and what is told meanwhile."""

import asyncio
import json

import pytest
from cluster.conftest import drain_request, pod_names
from cluster.drain_obstacles import (
    BUDGETS,
    blocked_by,
    make_budget,
)

from gpu_runbooks.activities.draining.drain import drain


async def test_grace_period_that_runs_at_the_deadline_is_waited_for(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("slow", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "8"})
    request = drain_request(blocked, seconds=3)
    report = await drain(kubernetes, request)
    assert (report.result.outcome, report.result.evicted) == ("drained", 1)
    assert report.pods[0].gone > request.deadline
    assert await pod_names(admin, namespace) == set()


async def test_pod_that_does_not_leave_gets_no_more_than_its_grace_period(kubernetes, blocked, make_pod):
    await make_pod(
        "stuck",
        blocked.name,
        spec={"terminationGracePeriodSeconds": 2},
        annotations={"gpu-runbooks.dev/stop-seconds": "600"},
    )
    async with asyncio.timeout(60):
        blocker = await blocked_by(kubernetes, drain_request(blocked, seconds=1))
    assert (blocker.name, blocker.reason) == ("stuck", "not-ended")


async def test_worker_that_takes_over_goes_on_from_the_last_beat(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1)
    for number in range(3):
        await make_pod(f"free-{number}", blocked.name)
    request = drain_request(blocked, seconds=60)
    beats, refused = [], asyncio.Event()

    def beat(said):
        beats.append(json.loads(json.dumps(said)))  # as it travels
        if said["gone"] == 3 and _attempts(said) >= 2:
            refused.set()

    draining = asyncio.create_task(drain(kubernetes, request, beat=beat))
    await refused.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    last, later, refused_again = beats[-1], [], asyncio.Event()

    def beat_again(said):
        later.append(said)
        if _attempts(said) > _attempts(last):
            refused_again.set()

    again = asyncio.create_task(drain(kubernetes, request, beat=beat_again, last_beat=last))
    await refused_again.wait()
    assert later[-1]["blockers"][0]["since"] == last["blockers"][0]["since"]
    await admin.request("DELETE", f"{BUDGETS.format(namespace)}/web")
    result = (await again).result
    assert (result.outcome, result.gone, result.evicted) == ("drained", 4, 4)


def _attempts(said):
    return sum(each["attempts"] for each in said["blockers"])


async def test_incident_is_told_what_is_in_the_way(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1)
    told = []

    async def on_progress(progress):
        told.append(progress)
        raise RuntimeError("Temporal is away")

    request = drain_request(blocked, seconds=8)
    blocker = await blocked_by(kubernetes, request, on_progress=on_progress)
    assert blocker.reason == "budget"
    (progress,) = told
    assert (progress.started, progress.remaining) == (request.started, 1)
    assert progress.blockers[0].names == ("web",)
