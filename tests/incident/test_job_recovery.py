"""The record of a job's application faults: its decisions, and its life on a server with skipped time."""

from datetime import timedelta

import pytest
from incident.conftest import running_workers
from incident.fakes import World
from incident.jobs import JOB, job_report, start_job
from incident.plans import T0
from incident.test_server import attributes_of
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from gpu_runbooks.activities.model.notify import OwnerNotified
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows.job_details import live_details
from gpu_runbooks.workflows.job_record import KEPT_FINGERPRINTS, LONGEST, Close, JobRecord, Tell, Wait, short
from gpu_runbooks.workflows.phases import Phase

QUIET = timedelta(minutes=3)
TOLD = OwnerNotified(objects=("PyTorchJob team-blue/train",), total=1)
LARGEST_PAYLOAD = 16 * 1024


def opened(nodes=("a", "b"), **changes) -> JobRecord:
    return JobRecord.open(job_report(list(nodes), **changes), T0)


def many(number: int) -> JobRecord:
    record = opened()
    for first in range(0, number, 10):
        record.add(job_report([f"node-{first + n}.ec2.internal" for n in range(10)]), T0)
    return record


class TestDecision:
    def test_the_owner_is_told_once_and_the_burst_waited_for(self):
        record = opened()
        assert isinstance(record.next_step(T0), Tell)
        record.told = TOLD
        assert record.next_step(T0) == Wait(T0 + QUIET)
        record.add(job_report(["c"]), T0 + timedelta(minutes=2))
        assert record.next_step(T0 + QUIET) == Wait(T0 + timedelta(minutes=5))
        end = record.next_step(T0 + timedelta(minutes=5))
        assert isinstance(end, Close)
        assert end.outcome == "notified"

    def test_a_repeat_makes_it_no_longer(self):
        record = opened()
        record.add(job_report(["a", "b"]), T0 + timedelta(minutes=2))
        assert (record.faults, record.last) == (2, T0)

    def test_faults_without_end_do_not_keep_it_open(self):
        record = opened()
        record.told = TOLD
        record.add(job_report(["c"]), T0 + LONGEST)
        assert isinstance(record.next_step(T0 + LONGEST), Close)

    @pytest.mark.parametrize(
        ("changes", "outcome"),
        [({"enforce": False}, "observed"), ({"ladder": "none"}, "left-alone"), ({}, "left-alone")],
    )
    def test_nobody_is_told(self, changes, outcome):
        record = opened(**changes)
        if not changes:
            record.problem = "not permitted to create events"
        assert isinstance(record.next_step(T0), Wait)
        end = record.next_step(T0 + QUIET)
        assert isinstance(end, Close)
        assert end.outcome == outcome

    @pytest.mark.parametrize("ladder", ["restart", "notify-and-restart"])
    def test_what_restarts_the_pods_of_a_node_tells_the_owner_of_a_job(self, ladder):
        assert isinstance(opened(ladder=ladder).next_step(T0), Tell)

    def test_a_long_history_ends_it(self):
        record = opened()
        record.told = TOLD
        assert isinstance(record.next_step(T0, history_is_long=True), Close)


class TestBounds:
    @pytest.mark.parametrize("number", [80, 1000, 3000])
    def test_many_nodes_are_a_number_and_a_digest(self, number):
        record = many(number)
        record.told = TOLD
        result = record.result(Close("notified", "told"))
        assert result.nodes == number + 2
        assert len(result.first_nodes) == 20
        assert len(result.model_dump_json()) < LARGEST_PAYLOAD
        assert f"{number + 2 - 20} more" in live_details(record, Phase.WAITING, None)

    def test_the_last_faults_are_known_after_the_end(self):
        record = many(3000)
        kept = record.result(Close("notified", "told")).fingerprints
        assert len(kept) == KEPT_FINGERPRINTS
        last = job_report(["node-2999.ec2.internal"]).faults[0].fault
        assert short(last) in kept

    def test_many_codes_are_counted_in_few_words(self):
        record = opened()
        for code in range(100, 200):
            record.add(job_report(["a"], str(code)), T0)
        assert sum(record.codes.values()) == 102
        assert len(record.codes) <= 21

    def test_the_digest_is_of_the_names_whatever_their_order(self):
        assert opened(("a", "b")).nodes_digest() == opened(("b", "a")).nodes_digest()
        assert opened(("a", "b")).nodes_digest() != opened(("a", "c")).nodes_digest()


async def test_a_job_is_told_once_and_its_record_closes_by_itself(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        handle = await start_job(skipping.client, job_report(["a", "b"]))
        assert await handle.execute_update("report_fault", job_report(["c", "d"])) == "joined"
        with pytest.raises(WorkflowUpdateFailedError) as rejected:
            await handle.execute_update("report_fault", job_report(["c"]))
        assert rejected.value.cause.type == "Known"
        result = await handle.result()
        attributes = await attributes_of(handle)
    assert (result.outcome, result.nodes, result.codes) == ("notified", 4, {"xid:45": 4})
    assert attributes["RunbookOutcome"] == "notified"
    assert attributes["RunbookPhase"] == "closed"
    assert world.calls == ["notify"]
    (request,) = world.notices
    assert (request.job, [node.name for node in request.nodes][:2]) == (JOB, ["a", "b"])


async def test_a_wrong_workflow_id_is_refused_with_the_right_one(skipping):
    async with running_workers(skipping.client, World()):
        handle = await skipping.client.start_workflow(
            "JobRecovery",
            {"report": job_report(["a"]).model_dump(mode="json")},
            id="job/test/other/train",
            task_queue=REMEDIATION_QUEUE,
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "job/test/team-blue/train" in str(failed.value.cause)


@pytest.mark.parametrize("raw", [None, {}, {"report": {"job": "train"}}, [1]])
async def test_bad_input_fails_at_once_and_names_the_field(skipping, raw):
    async with running_workers(skipping.client, World()):
        handle = await skipping.client.start_workflow(
            "JobRecovery", raw, id="job/test/a/b", task_queue=REMEDIATION_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "bad input of JobRecovery" in str(failed.value.cause)
