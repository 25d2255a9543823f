"""Times that nobody can compare, or add to: they are refused where they arrive, and stop no workflow."""

from datetime import UTC, datetime

import pytest
from guard.fleet_world import CONDITION, FleetWorld, bad_node, open_incident
from incident.conftest import running_workers
from incident.plans import fault, report
from pydantic import ValidationError
from temporalio.client import WorkflowUpdateFailedError

from gpu_runbooks.activities.model.fault import ConditionCleared, Fault, Repeated
from gpu_runbooks.activities.model.fleet import Brake, FaultsSeen, StormRule
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workflows.audit import Status
from gpu_runbooks.workflows.slots import read_request

NO_MOMENTS = (
    "2026-01-01T00:00:00",
    "0001-01-01T00:00:00",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-12:00",
    "noon",
)
NO_SPANS = ("P999999999D", "-P999999999D", "-PT1S", "P367D")
REQUEST = {"incident": "node/test/a", "run_id": "r", "node": "a"}


@pytest.mark.parametrize("moment", NO_MOMENTS)
@pytest.mark.parametrize(
    ("kind", "field", "raw"),
    [
        (Fault, "first_seen", fault().model_dump(mode="json")),
        (Fault, "last_seen", fault().model_dump(mode="json")),
        (ConditionCleared, "at", {"type": "Ready", "uid": "u"}),
        (Repeated, "last_seen", {"counts": {}}),
        (Brake, "trusted_until", {}),
    ],
)
def test_a_time_that_cannot_be_compared_is_none(kind, field, raw, moment):
    with pytest.raises(ValidationError):
        kind.model_validate({**raw, field: moment})
    read = kind.model_validate({**raw, field: "2026-01-01T02:00:00+02:00"})
    assert read.model_dump()[field] == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("moment", NO_MOMENTS)
def test_a_request_with_such_a_time_is_none(moment):
    assert read_request({**REQUEST, "since": moment}) is None
    assert read_request({**REQUEST, "since": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize("span", NO_SPANS)
@pytest.mark.parametrize(
    ("kind", "field", "raw"),
    [
        (Brake, "every", {}),
        (StormRule, "within", {}),
        (StormRule, "cool_down", {}),
        (StormRule, "pace", {}),
    ],
)
def test_a_time_that_cannot_be_waited_for_is_none(kind, field, raw, span):
    with pytest.raises(ValidationError):
        kind.model_validate({**raw, field: span})
    assert kind.model_validate({**raw, field: "PT5M"})
    assert kind is not StormRule or FaultsSeen.model_validate({"faults": [], "rule": {field: "PT5M"}})


@pytest.mark.parametrize("span", NO_SPANS)
@pytest.mark.parametrize("field", ["operator_reminder", "operator_deadline", "probation"])
def test_a_plan_with_such_a_time_is_none(field, span):
    raw = report().model_dump(mode="json")
    FaultReport.model_validate(raw)
    raw["plan"][field] = span
    with pytest.raises(ValidationError):
        FaultReport.model_validate(raw)


async def test_an_incident_goes_on_after_such_words(skipping):
    client, now = skipping.client, await skipping.get_current_time()
    async with running_workers(client, FleetWorld(conditions={CONDITION: "False"})):
        with skipping.auto_time_skipping_disabled():
            handle = await open_incident(client, "n1", now)
            raw = bad_node("n1", now).model_dump(mode="json")
            raw["fault"] |= {"first_seen": "2026-01-01T00:00:00", "fingerprint": "another"}
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("report_fault", raw)
            await handle.signal(
                "condition_cleared", {"type": CONDITION, "uid": "u", "at": "2026-01-01T00:00"}
            )
            assert (await handle.query("status", result_type=Status)).outcome is None
        assert (await handle.result()).outcome == "returned"
