"""A budget that begins asks incidents of which no worker answers: it takes its time, and that shows."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import temporal
from gpu_runbooks.activities.model.slot import ClosedIncidents, FindClosedIncidents, FindHolders
from gpu_runbooks.workflows.search_attributes import SEARCH_ATTRIBUTES

KEYS = {key.name: key for key in SEARCH_ATTRIBUTES}


def attributes(pool: str, phase: str) -> TypedSearchAttributes:
    values = {"RunbookCluster": "test", "RunbookPool": pool, "RunbookPhase": phase}
    return TypedSearchAttributes([SearchAttributePair(KEYS[key], value) for key, value in values.items()])


@pytest.mark.parametrize("phase", ["draining", "waiting-for-slot"])
async def test_silent_incidents_are_asked_under_heartbeats_and_counted_by_their_phase(
    server, monkeypatch, phase
):
    monkeypatch.setattr(temporal, "ANSWERS_WITHIN", timedelta(seconds=0.4))
    monkeypatch.setattr(temporal, "ASKED_AT_ONCE", 2)
    pool = f"silent-{phase}"
    handles = [
        await server.start_workflow(
            "NodeRemediation",
            id=f"node/test/{pool}-{number}",
            task_queue="nobody-works-here",
            search_attributes=attributes(pool, phase),
        )
        for number in range(4)
    ]
    activities = temporal.Temporal(server)
    environment, beats = ActivityEnvironment(), []
    environment.info = replace(environment.info, heartbeat_timeout=timedelta(seconds=0.3))
    environment.on_heartbeat = lambda *details: beats.append(details)
    async with asyncio.timeout(60):
        query = f"RunbookPool = '{pool}'"
        while len([run async for run in server.list_workflows(query)]) < len(handles):
            await asyncio.sleep(0.05)
    found = await environment.run(activities.find_holders, FindHolders(cluster="test", pool=pool))
    assert len(beats) >= 4  # one at once, and a third of the timeout apart from then on
    assert {each.incident for each in found.holders} == (
        {handle.id for handle in handles} if phase == "draining" else set()
    )
    asked = FindClosedIncidents(incidents=found.holders)
    assert await activities.find_closed_incidents(asked) == ClosedIncidents(closed=())
    for handle in handles:
        await handle.terminate()
    assert set((await activities.find_closed_incidents(asked)).closed) == set(found.holders)
