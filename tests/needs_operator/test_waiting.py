"""A question to a person, with time skipped: who is called, how often, and what follows in the end."""

from datetime import timedelta

import pytest
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.opened import a_person_is_asked, client_time, slots, start, status
from incident.plans import fault, report, rungs
from incident.test_repairs import policy
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.drain import EvidenceReference
from gpu_runbooks.activities.model.node import BlockMarker
from gpu_runbooks.activities.model.node_task import Examination
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.slot import PoolBudget, PoolSeen
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows.audit import Result
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Outcome, Phase

WORD = {"operator": "ana", "reason": "looked"}
HOUR = timedelta(hours=1)
LATE = timedelta(minutes=40)


def raise_unavailable() -> None:
    raise ApplicationError("no answer", type=errors.UNAVAILABLE, non_retryable=True)


def raised(world: World, *, severity: str = "", over: bool = False):
    return [page for page in world.pages if page.over is over and severity in {"", page.severity}]


async def test_person_is_called_at_once_reminded_and_called_off_by_the_answer(skipping):
    world = World(validations=[False])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "replace", operator_reminder=timedelta(minutes=40))
        await a_person_is_asked(handle)
        await until(lambda: world.pages)
        first = world.pages[0]
        await skipping.sleep(timedelta(minutes=65))
        # At 0, 30 and 60 minutes: the alert is kept up, and it is one and the same.
        assert len(raised(world)) == 3
        assert {(page.alert, page.severity, page.since) for page in world.pages} == {
            ("GpuRunbookNeedsOperator", "warning", first.since)
        }
        assert all(page.labels == first.labels for page in world.pages)
        assert first.labels["node"] == "n1"
        assert first.node == "n2"  # the Event is on the replacement, which is the one that waits
        assert first.labels["workflow"] == "node/test/n1"
        assert "no rung left" in first.summary
        assert all(page.until > page.since + timedelta(hours=2) - HOUR / 60 for page in world.pages)
        seen = await status(handle)
        assert seen.phase is Phase.NEEDS_OPERATOR
        assert seen.blocked
        assert seen.slot_held
        assert [holder["node"] for holder in (await slots(skipping.client))["holders"]] == ["n1"]
        await handle.execute_update("escalate_to", {**WORD, "rung": "replace"})
        assert (await handle.result()).outcome is Outcome.REPLACED
        assert (await slots(skipping.client))["holders"] == []
    assert len(raised(world, over=True)) == 1
    assert len(raised(world)) == 3
    assert world.pages[-1].over


async def test_after_the_deadline_it_is_called_as_critical_and_goes_on_asking(skipping):
    world = World(validations=[False])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "replace", operator_deadline=LATE, operator_reminder=5 * HOUR)
        await a_person_is_asked(handle)
        await skipping.sleep(timedelta(minutes=75))
        assert len(raised(world, severity="warning")) == 2
        assert [page.severity for page in raised(world, over=True)] == ["warning"]
        assert len(raised(world, severity="critical")) == 2
        assert (await status(handle)).phase is Phase.NEEDS_OPERATOR
        notes = (await handle.query("__temporal_workflow_metadata")).current_details
        assert "nobody answered within 40 minutes: called as critical" in notes
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome is Outcome.ABORTED
    assert [page.severity for page in raised(world, over=True)] == ["warning", "critical"]
    assert world.node_has_block()
    assert {page.alert for page in world.pages} == {"GpuRunbookNeedsOperator"}


async def test_after_the_deadline_policy_may_end_it_with_the_block_kept_and_a_word_about_it(skipping):
    world = World(validations=[False])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "replace", operator_deadline=LATE, after_deadline="abort")
        result = await handle.result()
        assert result.outcome is Outcome.ABORTED
        assert "nobody answered within 40 minutes" in result.reason
        assert "no rung left" in result.reason
        assert (await slots(skipping.client))["holders"] == []
    assert world.node_has_block()
    assert "unblock" not in world.acts
    assert world.pages[-1].alert == "GpuRunbookLeftBlocked"
    assert not world.pages[-1].over
    assert len(raised(world, over=True)) == 1


async def test_after_the_deadline_policy_may_go_on_with_the_next_stronger_repair(skipping):
    world = World(drains=["blocked", "drained"])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "reboot", operator_deadline=LATE, after_deadline="escalate")
        assert (await handle.result()).outcome is Outcome.RETURNED
        details = (await handle.query("__temporal_workflow_metadata")).current_details
    assert "nobody answered within 40 minutes, so policy goes on with reboot" in details
    assert world.acts.count("drain") == 2
    assert world.acts.count("reboot") == 1
    assert len(raised(world, over=True)) == 1


async def test_new_question_begins_a_new_deadline(skipping):
    world = World(drains=["blocked", "blocked"])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "reboot", operator_deadline=LATE)
        await a_person_is_asked(handle)
        await skipping.sleep(timedelta(minutes=30))
        await handle.execute_update("retry", WORD)
        await until(lambda: world.acts.count("drain") == 2)
        await a_person_is_asked(handle)
        await skipping.sleep(timedelta(minutes=30))
        assert raised(world, severity="critical") == []
        await skipping.sleep(timedelta(minutes=15))
        assert raised(world, severity="critical") != []
        assert len({page.since for page in raised(world)}) == 2


async def test_question_behind_one_that_had_no_answer_has_its_own_deadline(skipping):
    """The evidence had no place at 0, 10 and 20 minutes; from 30 on it has, and the drain wants approval."""
    kept = EvidenceReference(digest="sha256:abc", size=1, location="", problem="no answer")
    world, begins = World(examinations=[Examination(evidence=kept)] * 3), await client_time(skipping.client)
    opened = report(
        "reset",
        of=fault(at=begins),
        operator_deadline=LATE,
        after_deadline="abort",
        repair=policy(without_evidence="stop"),
    )
    drain = [each.model_copy(update={"approval": each.name == "drain"}) for each in rungs("reset")]
    treatment = opened.plan.treatment.model_copy(update={"rungs": tuple(drain)})
    plan = opened.plan.model_copy(update={"treatment": treatment})
    async with running_workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "NodeRemediation",
            {"report": opened.model_copy(update={"plan": plan}).model_dump(mode="json")},
            id="node/test/n1",
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )
        assert "before drain" in (await handle.result()).reason
        assert await client_time(skipping.client) - begins >= LATE + timedelta(minutes=25)


async def test_slot_that_nobody_can_grant_is_no_silent_wait(skipping):
    world = World(pool=PoolSeen(nodes=5))
    none = PoolBudget(percent=10)
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, budget=none, operator_reminder=timedelta(minutes=20))
        await skipping.sleep(timedelta(minutes=30))
        details = (await handle.query("__temporal_workflow_metadata")).current_details
        assert "still without a slot of pool p5: the query state of budget/test/p5 says why" in details
        await handle.terminate()
    assert world.acts == []


async def test_nobody_is_called_for_what_is_over_within_minutes(skipping):
    """An API that is away is asked again by itself; only when that goes on, it is a person's."""
    world = World()
    away = {"left": 2}

    def lose(call: str) -> None:
        if call == "reset" and away["left"]:
            away["left"] -= 1
            raise_unavailable()

    world.on_call = lose
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.pages == []


async def test_person_is_called_for_what_has_no_answer_for_long(skipping):
    world = World()
    away = {"is": True}

    def lose(call: str) -> None:
        if call == "reset" and away["is"]:
            raise_unavailable()

    world.on_call = lose
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        await skipping.sleep(timedelta(minutes=25))
        assert world.pages == []
        await skipping.sleep(timedelta(minutes=25))
        assert len(raised(world)) >= 1
        away["is"] = False
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.pages[-1].over


async def test_who_cannot_be_reached_stops_nothing_and_is_tried_again(skipping):
    world = World(validations=[False], page_problem="http://alertmanager:9093: 503")
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "replace")
        await a_person_is_asked(handle)
        await skipping.sleep(timedelta(minutes=12))
        assert len(raised(world)) == 3  # every five minutes
        details = (await handle.query("__temporal_workflow_metadata")).current_details
        assert "not everybody could be called" in details
        assert "http://alertmanager:9093: 503" in details
        world.page_problem = ""
        await skipping.sleep(timedelta(minutes=30))
        assert len(raised(world)) == 4
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome is Outcome.ABORTED


@pytest.mark.parametrize(
    ("runbook", "scripted"),
    [("RebootNode", {"reboots": ["unproven"]}), ("DrainNode", {"drains": ["blocked"]})],
)
async def test_runbook_of_a_person_asks_and_calls_as_well(skipping, runbook, scripted):
    world = World(**scripted)
    async with running_workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            runbook,
            {"node": "n1", "operator": "ana", "reason": "replace the fan"},
            id="node/test/n1",
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )
        await a_person_is_asked(handle)
        await until(lambda: world.pages)
        assert world.pages[0].labels["runbook"] == runbook
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert world.pages[-1].over
    assert world.node_has_block()


async def test_deadline_survives_a_run_that_continues_as_new(skipping):
    """The second run gets what the first one handed over: a question of yesterday, and its alert."""
    world, now = World(), await client_time(skipping.client)
    opened = report("replace", of=fault(at=now), operator_deadline=30 * HOUR)
    incident = Incident.open("test", "node/test/n1", "run", opened, now)
    incident.question, incident.blocked, incident.phase = "what now?", True, Phase.NEEDS_OPERATOR
    incident.asked, incident.asked_since, incident.paged = "what now?", now - 29 * HOUR, True
    incident.remind_at = incident.page_again = now + HOUR / 6
    world.marker = BlockMarker(
        incident="node/test/n1", run_id="run", reasons=("r",), since=now, was_unschedulable=False
    )
    async with running_workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "NodeRemediation",
            {"incident": incident.model_dump(mode="json")},
            id="node/test/n1",
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )
        await a_person_is_asked(handle)
        await skipping.sleep(HOUR / 2)
        assert {page.severity for page in world.pages} == {"warning"}
        assert {page.since for page in world.pages} == {now - 29 * HOUR}
        await skipping.sleep(HOUR)
        assert len(raised(world, over=True)) == 1
        assert raised(world, severity="critical") != []
        await handle.terminate()


async def test_answers_that_fit_no_question_are_refused_in_probation(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, probation=HOUR)
        await until(lambda: "unblock" in world.acts)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("escalate_to", {**WORD, "rung": RungName.REBOOT})
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.pages == []
