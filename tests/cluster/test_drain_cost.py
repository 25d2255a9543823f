"""What drains may cost: the API server many calls at once, and their own worker processor time."""

import asyncio

from cluster.conftest import block_request, drain_request, pod_names

from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.api_faults import hang


async def test_drains_that_share_places_have_no_more_evictions_in_flight(
    faulty, proxy, admin, kubernetes, make_node, namespace, make_pod
):
    identities = [identity_of(await make_node()) for _ in range(3)]
    for identity in identities:
        await block(kubernetes, block_request(identity))
        for number in range(6):
            await make_pod(f"{identity.name}-{number}", identity.name)
    flying, most = 0, 0

    async def count(_, forward):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        try:
            return await forward()
        finally:
            flying -= 1

    proxy.inject(count, method="POST", path=".*/eviction", times=None)
    places = asyncio.Semaphore(2)
    reports = await asyncio.gather(
        *(drain(faulty, drain_request(identity), places=places) for identity in identities)
    )
    assert [report.result.outcome for report in reports] == ["drained"] * 3
    assert most <= 4  # of eighteen; the proxy counts one down only after the drain has its answer
    assert await pod_names(admin, namespace) == set()


async def test_drain_that_waits_for_its_first_list_does_nothing_else(faulty, proxy, blocked, monkeypatch):
    looks = 0
    due = DrainState.due

    def counted(state, now):
        nonlocal looks
        looks += 1
        return due(state, now)

    monkeypatch.setattr(DrainState, "due", counted)
    proxy.inject(hang(), path="/api/v1/pods", times=None)
    report = await drain(faulty, drain_request(blocked, seconds=3))
    assert report.result.outcome == "blocked"
    assert "could not be listed" in report.result.message
    assert looks < 20
