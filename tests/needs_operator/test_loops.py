"""Fault, return, the same fault: hardware that goes round in circles ends at a person, untouched."""

import asyncio
from datetime import timedelta

import pytest
from incident.conftest import running_workers, server  # noqa: F401  a fixture
from incident.fakes import World
from incident.opened import a_person_is_asked, status
from incident.plans import T0, fault, identity, report
from ledger.factories import NEW, OLD, A, B, repair
from ledger.factories import identity as machine

from gpu_runbooks.activities.history.ledger import recall_hardware
from gpu_runbooks.activities.history.recorded_repairs import LARGEST_MEMO, MEMO, repairs_memo
from gpu_runbooks.activities.model.fault import Entity, FaultSource
from gpu_runbooks.activities.model.ledger import HardwareHistory, PastRepair, RecallHardware
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import RepairPolicy, RepeatPolicy
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows import ledger
from gpu_runbooks.workflows.acts import Act, Examined
from gpu_runbooks.workflows.audit import Result
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    AskOperator,
    Block,
    Examine,
    HoldSlot,
    Recall,
)
from gpu_runbooks.workflows.ledger import Done
from gpu_runbooks.workflows.phases import Outcome

NOW = T0 + timedelta(days=30)
POLICY = RepeatPolicy(window=timedelta(days=7), returns=3)
LATER = T0 + timedelta(hours=1)


def returned(*, hardware=(OLD,), signs=("xid 95",), ago=timedelta(hours=1), run_id="run-1") -> PastRepair:
    return repair(RungName.RETURN, hardware, ago, now=NOW, run_id=run_id).model_copy(update={"signs": signs})


def gpu_fault(code="95", gpu=A):
    return fault(code, gpu=gpu)


def of_source(source: FaultSource, code: str):
    return fault(code, gpu=None).model_copy(update={"source": source})


@pytest.mark.parametrize(
    ("past", "count"),
    [
        ([returned()], 1),
        ([returned(), returned()], 1),
        ([returned(), returned(ago=timedelta(hours=2)), returned(ago=timedelta(days=6))], 3),
        ([returned(ago=timedelta(days=8))], 0),
        ([returned(hardware=(NEW,))], 0),
        ([returned(hardware=(NEW, A))], 1),
        ([returned(signs=("xid 79",))], 0),
        ([returned(signs=("xid 79", f"at {A}"))], 1),
        ([returned(signs=("xid 79", f"at {B}"))], 0),
        ([repair(RungName.REBOOT, (OLD,), now=NOW)], 0),
    ],
    ids=[
        "one",
        "the same one twice",
        "three",
        "too long ago",
        "another machine",
        "under another name",
        "another fault",
        "another fault at the same GPU",
        "another fault at another GPU",
        "a repair",
    ],
)
def test_returns_of_the_same_hardware_that_the_same_fault_followed(past, count):
    suspect = ledger.suspect(machine(OLD), None, [(A, None)])
    signs = ledger.signs_of([gpu_fault()])
    done = ledger.undone(HardwareHistory(repairs=tuple(past)), suspect, signs, POLICY, NOW)
    assert done.times == count


@pytest.mark.parametrize(
    ("faults", "signs"),
    [
        ([gpu_fault()], ("xid 95", f"at {A}")),
        (
            [fault("Ready", gpu=None).model_copy(update={"source": FaultSource.CONDITION})],
            ("condition Ready",),
        ),
        (
            [fault().model_copy(update={"entity": Entity(kind="gpu", pci_address="0000:4c:00")})],
            ("xid 95", "at 0000:4c:00"),
        ),
        ([of_source(FaultSource.MANUAL, "manual")], ()),
    ],
)
def test_signs_of_a_fault(faults, signs):
    assert ledger.signs_of(faults) == signs


def test_signs_and_memo_are_bounded():
    many = [fault("x" * 300 + str(number), gpu=f"GPU-{number}" + "y" * 300) for number in range(100)]
    signs = ledger.signs_of(many)
    assert len(signs) == ledger.MOST_SIGNS
    assert max(map(len, signs)) <= ledger.LONGEST_SIGN
    names = tuple(f"GPU-{number:036}" for number in range(24))
    returns = [
        returned(hardware=names, signs=signs, ago=timedelta(hours=number), run_id=f"run-{number}")
        for number in range(50)
    ]
    kept = repairs_memo(returns)[MEMO]
    assert 1 < len(kept) < 50
    assert sum(len(PastRepair.model_validate(each).model_dump_json()) for each in kept) <= LARGEST_MEMO
    assert [each["run_id"] for each in kept] == [f"run-{number}" for number in range(len(kept))]


def blocked(before: int, **state) -> Incident:
    """An incident that has just blocked its node, and knows of so many returns."""
    repeats = RepairPolicy(repeats=POLICY)
    subject = Incident.open("test", "node/test/n1", "run", report(repair=repeats), T0)
    subject.record(Act(rung=RungName.BLOCK, attempt=1, proven=True, proof="", started=T0, ended=T0))
    subject.blocked = True
    subject.returned_before = Done(before, "return at ...")
    return subject.model_copy(update=state)


@pytest.mark.parametrize(
    ("subject", "step"),
    [
        (blocked(2, slot_held=True), Examine),
        (blocked(3, slot_held=True), AskOperator),
        (blocked(3), AskOperator),
        (blocked(2), HoldSlot),
        (blocked(2, returns_undone=1), AskOperator),
        (blocked(3, returns_answered=3, slot_held=True), Examine),
        (blocked(3, returns_answered=3, returns_undone=1, slot_held=True), AskOperator),
        (blocked(3, repaired=T0, slot_held=True), AskOperator),
        (blocked(5, returned_before=None, slot_held=True), Recall),
    ],
    ids=[
        "not often enough",
        "too often",
        "asks before it waits for a slot",
        "goes on to the slot",
        "with the one of this incident",
        "answered by a person",
        "once more since the answer",
        "over by itself meanwhile",
        "not asked of the ledger",
    ],
)
def test_when_a_person_has_to_look_first(subject, step):
    taken = next_step(subject, LATER)
    assert isinstance(taken, step)
    if step is AskOperator:
        assert "the same fault came back after each of" in taken.question


def test_node_is_blocked_before_anybody_is_asked():
    subject = blocked(3, blocked=False, slot_held=True)
    assert isinstance(next_step(subject, LATER), Block)


@pytest.mark.parametrize(
    ("rung", "tried", "cap"),
    [
        (RungName.RESET_GPU, (), 3),
        (RungName.REBOOT, (RungName.RESET_GPU,), 3),
        (RungName.REPLACE, (RungName.RESET_GPU, RungName.REBOOT), 2),
    ],
)
def test_cap_of_every_rung_asks_before_anything_is_drained(rung, tried, cap):
    subject = blocked(0, slot_held=True, recalled=True)
    for name in tried:
        subject.record(Act(rung=name, attempt=1, proven=False, proof="", started=T0, ended=T0))
    subject.examined = Examined(evidence="sha256:abc")
    subject.done_before = {each: Done(0, "") for each in ledger.NEXT} | {rung: Done(cap, "before")}
    step = next_step(subject, LATER)
    assert isinstance(step, AskOperator)
    assert f"{rung} was done {cap} times to the same hardware" in step.question
    subject.done_before |= {rung: Done(cap - 1, "before")}
    assert not isinstance(next_step(subject, LATER), AskOperator)


def test_successor_is_looked_up_in_the_ledger_by_its_own_names():
    subject = blocked(0, slot_held=True, recalled=True, done_before={RungName.REPLACE: Done(1, "")})
    subject.go_on_with(identity("n1", boot_id="boot-2"))
    assert subject.recalled
    subject.go_on_with(identity("n2"))
    assert not subject.recalled
    assert subject.done_before == {}


async def test_second_time_round_a_person_is_asked_before_the_drain(server):  # noqa: F811
    """The returns are read from what the first incident left in Temporal, memo and search attribute."""
    node = identity("n1", instance_id="i-round", provider_id="aws:///us-east-1a/i-round")
    repeats = RepairPolicy(repeats=RepeatPolicy(window=timedelta(days=7), returns=1))
    world = World(node=node)

    async def open_incident(number: int):
        opened = report("block", of=fault(fingerprint=f"round-{number}"), identity=node, repair=repeats)
        return await server.start_workflow(
            "NodeRemediation",
            {"report": opened.model_dump(mode="json")},
            id="node/test/n1",
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )

    async with running_workers(server, world):
        first = await open_incident(1)
        await a_person_is_asked(first)  # a ladder without a repair: a person says that it is mended
        await first.execute_update("retry", {"operator": "ana", "reason": "cable"})
        assert (await first.result()).outcome is Outcome.RETURNED
        asked = RecallHardware(hardware=("i-round",), since=T0, run_id="nobody")
        async with asyncio.timeout(30):
            while not (history := await recall_hardware(server, asked)).repairs:  # visibility lags
                await asyncio.sleep(0.05)
        assert [each.rung for each in history.repairs] == [RungName.RETURN]
        assert "xid 95" in history.repairs[0].signs
        before = len(world.acts)
        second = await open_incident(2)
        await a_person_is_asked(second)
        seen = await status(second)
        assert seen.blocked
        assert "the same fault came back after each of 1 returns" in seen.question
        assert world.acts[before:] == ["block"]
        await second.execute_update("abort", {"operator": "ana", "reason": "out with it"})
        assert (await second.result()).outcome is Outcome.ABORTED
