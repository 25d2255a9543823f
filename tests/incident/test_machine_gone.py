"""A machine that goes away under a repair: its successor is found; one that comes back is not destroyed."""

from datetime import timedelta

import pytest
from incident.fakes import World
from incident.opened import a_person_is_asked, start, status
from incident.plans import identity
from incident.test_repairs import TESTED, WORD, climb, policy
from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.repair import (
    AwaitReboot,
    ClaimReplacement,
    NodeClaimGone,
    RebootProof,
    ReplacementProof,
    SuccessorComing,
)

LOST = SuccessorComing(coming=False, capacity_lost=True, message="no p5 in us-east-1a")
COMING = NodeClaimGone(gone=True, successor=True)


class Slow(World):
    """The first wait for a successor is in vain."""

    asked = 0

    @activity.defn
    async def claim_replacement(self, request: ClaimReplacement):
        self.asked += 1
        if self.asked == 1:
            await self._called("claim")
            return ReplacementProof(proven=False, message="no node came")
        return await World.claim_replacement(self, request)


class Registering(World):
    """The Node is deleted in its reboot, and the same machine registers again."""

    boot_id = "boot-n1-2"

    @activity.defn
    async def await_reboot(self, request: AwaitReboot):  # noqa: ARG002
        await self._called("await_reboot")
        self.node, self.marker = identity("n1", uid="uid-again", boot_id=self.boot_id), None
        return RebootProof(proven=False, gone=True, message="the Node went away")


async def test_a_machine_that_registers_again_in_its_reboot_is_blocked_and_validated(skipping, workers):
    world = Registering()
    result, _ = await climb(skipping, workers, world, "reboot")
    assert world.acts == ["block", "drain", "reboot", "await_reboot", "block", *TESTED]
    assert result.outcome == "returned"


async def test_one_that_registers_again_in_the_old_boot_is_drained_again_before_it_is_replaced(
    skipping, workers
):
    world = Registering(boot_id="boot-n1-1")
    result, _ = await climb(skipping, workers, world, "reboot")
    assert world.acts == [
        *["block", "drain", "reboot", "await_reboot", "block", "drain", "replace", "claim", "confirm"],
        *TESTED,
    ]
    assert result.outcome == "replaced"


async def test_policy_asks_also_before_a_machine_without_a_node_is_replaced(skipping, workers):
    world = World(reboot_takes_it_away=True)
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "reboot", repair=policy(replace="ask"))
        await skipping.sleep(600)
        await a_person_is_asked(handle)
        assert "replace" not in world.acts
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("escalate_to", {**WORD, "rung": "reboot"})
        assert "is gone" in str(refused.value.cause)
        await handle.execute_update("escalate_to", {**WORD, "rung": "replace"})
        assert (await handle.result()).outcome == "replaced"


@pytest.mark.parametrize("word", ["retry", "escalate_to"])
async def test_a_person_may_hurry_the_wait_for_capacity_and_nothing_is_terminated_again(
    skipping, workers, word
):
    world = World(successors=[LOST])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace")
            await a_person_is_asked(handle)
            assert "capacity lost" in (await status(handle)).question
            argument = WORD if word == "retry" else {**WORD, "rung": "replace"}
            await handle.execute_update(word, argument)
            assert (await handle.result()).outcome == "replaced"
    assert world.acts == ["block", "drain", "replace", "claim", "confirm", *TESTED]


@pytest.mark.parametrize("karpenter", [False, True], ids=["group", "karpenter"])
@pytest.mark.parametrize("reminded", [False, True])
async def test_a_successor_that_is_late_is_still_claimed(skipping, workers, karpenter, reminded):
    world = Slow(karpenter=karpenter, node_claims=[COMING, COMING])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "replace", operator_reminder=timedelta(minutes=10))
        if reminded:
            await skipping.sleep(timedelta(minutes=35))
        await a_person_is_asked(handle)
        assert "no node came" in (await status(handle)).question
        await handle.execute_update("retry", WORD)
        assert (await handle.result()).outcome == "replaced"
    assert world.acts.count("delete_claim" if karpenter else "replace") == 1


@pytest.mark.parametrize(
    "kind", [errors.NOT_VERIFIED, errors.AWS, errors.UNAVAILABLE], ids=["unseen", "throttled", "away"]
)
async def test_a_termination_whose_answer_was_lost_does_not_lose_the_successor(skipping, workers, kind):
    """The call went out, and its Node goes before anybody looks again."""
    world = World()

    def lose(call: str) -> None:
        if call == "replace" and world.calls.count("replace") == 1:
            world.node, world.marker = identity("n2"), None
            raise ApplicationError("no answer", type=kind, non_retryable=True)

    world.on_call = lose
    result, _ = await climb(skipping, workers, world, "replace")
    assert world.acts == ["block", "drain", "replace", "replace", "claim", "confirm", *TESTED]
    assert result.outcome == "replaced"


async def test_a_node_claim_that_could_not_be_deleted_uses_no_attempt_up(skipping, workers):
    world = World(karpenter=True, node_claims=[COMING])

    def late(call: str) -> None:
        if call == "delete_claim" and world.calls.count("delete_claim") == 1:
            raise errors.refusal(errors.NOT_SENT, "the look at the node is too old")

    world.on_call = late
    result, _ = await climb(skipping, workers, world, "replace")
    assert world.acts.count("delete_claim") == 2
    assert result.outcome == "replaced"
