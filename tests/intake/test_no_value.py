"""Labels in which an exporter says that it has no value."""

import json

import pytest
from intake.alerts import RECEIVED, alert, fresh
from intake.conftest import Webhook

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workers.intake.alert_faults import fault_of
from gpu_runbooks.workers.intake.alertmanager import Alert, AlertRefused


def fault(**labels: str) -> Fault:
    return fault_of(Alert.model_validate_json(json.dumps(alert(**labels))), RECEIVED)


@pytest.mark.parametrize("label", ["xid", "sxid", "dcgm_health_code", "health_error_code"])
@pytest.mark.parametrize(
    "written", ["-1", "-1.0", "-0", " NaN ", "+Inf", "-inf", "null", "<no value>", "<nil>"]
)
def test_it_is_refused(label: str, written: str) -> None:
    with pytest.raises(AlertRefused, match=f"{label} .* is no code: the exporter had no value"):
        fault(**{label: written})


@pytest.mark.parametrize("written", ["Xid79", "79,94", "79-1", "infinite"])
def test_what_is_written_otherwise_stays_for_policy(written: str) -> None:
    assert (fault(xid=written).source, fault(xid=written).code) == (FaultSource.XID, written)


def test_another_label_may_have_the_code() -> None:
    found = fault(xid="-1", sxid="20034")

    assert (found.source, found.code) == (FaultSource.SXID, "20034")


@pytest.mark.usefixtures("controller")
async def test_no_incident_and_a_line_in_the_log(
    webhook: Webhook, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpu_runbooks")

    status, body = await webhook.post(fresh(node=node, xid="-1"))

    assert (status, body["alerts"][0]["status"]) == (200, "refused")
    assert "xid -1 is no code" in caplog.text
    assert await webhook.incident(node) is None
