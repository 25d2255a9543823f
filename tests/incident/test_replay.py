"""Histories of earlier versions replay: an incident that is open during a deployment goes on."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from gpu_runbooks.workers.controller import WORKFLOWS
from gpu_runbooks.workers.punctual import PunctualRunner

HISTORIES = sorted(Path(__file__).with_name("histories").glob("*.json"))


def replayer() -> Replayer:
    return Replayer(
        workflows=WORKFLOWS,
        data_converter=pydantic_data_converter,
        workflow_runner=PunctualRunner(),
    )


def history(recorded: dict) -> WorkflowHistory:
    began = recorded["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(began["workflowId"], recorded)


@pytest.mark.parametrize("file", HISTORIES, ids=[file.stem for file in HISTORIES])
async def test_a_recorded_history_replays(file):
    await replayer().replay_workflow(history(json.loads(file.read_text())))


async def test_a_history_that_the_code_contradicts_does_not_replay():
    recorded = json.loads(next(file for file in HISTORIES if file.stem == "incident-reset").read_text())
    for event in recorded["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes", {})
        if scheduled.get("activityType", {}).get("name") == "drain_pods":
            scheduled["activityType"]["name"] = "reboot_instance"
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history(recorded))


def test_there_are_histories_to_replay():
    assert len(HISTORIES) >= 7
