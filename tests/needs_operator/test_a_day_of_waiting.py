"""A day of waiting for a person, with two thousand words on the way: the slot stays, no run is too long."""

import asyncio
from datetime import UTC, datetime, timedelta

from budget.fleet import Fleet
from budget.incidents import names, start, until_state
from incident.conftest import running_workers, until
from needs_operator.test_events_of_waits import until_phase

from gpu_runbooks.activities.model.fault import Repeated
from gpu_runbooks.workflows.audit import Status

HOURS = 24

SIGNALS, AT_ONCE = 2000, 50

MOST_EVENTS = 5000
"""Of a run: the server ends one with 51,200 (temporalio/temporal#1069)."""


async def test_a_slot_is_kept_for_a_day_and_free_when_its_owner_is_gone(skipping):
    client, fleet = skipping.client, Fleet("a", "b")
    fleet.worlds["a"].drains = ["blocked"]
    async with running_workers(client, fleet):
        with skipping.auto_time_skipping_disabled():
            owner = await start(client, "a", pool="p")
            await until_phase(owner, "needs-operator")
            await start(client, "b", pool="p")
            await until_state(client, "p", lambda seen: names(seen["waiters"]) == ["b"])
            word = Repeated(counts={"one": 1}, last_seen=datetime.now(UTC))
            for _ in range(SIGNALS // AT_ONCE):
                await asyncio.gather(*(owner.signal("repeated", word) for _ in range(AT_ONCE)))
        for _ in range(HOURS):  # one by one: a day at once takes the server longer than a call may
            await skipping.sleep(timedelta(hours=1))
        incident = await owner.describe()
        assert incident.status.name == "RUNNING"
        assert incident.history_length < MOST_EVENTS
        assert (await owner.query("status", result_type=Status)).phase == "needs-operator"
        seen = await until_state(client, "p", lambda seen: bool(seen["holders"]))
        assert (names(seen["holders"]), names(seen["waiters"])) == (["a"], ["b"])
        assert fleet.worlds["b"].calls == []
        await client.get_workflow_handle(owner.id).terminate("by hand")
        fleet.worlds["a"].marker = None  # a person has given the node back
        await skipping.sleep(timedelta(minutes=15))
        await until(lambda: "drain" in fleet.worlds["b"].calls)
