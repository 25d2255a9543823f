"""Our own alerts come back where a route sends everything to the intake: they are no faults."""

import pytest
from intake.alerts import RECEIVED, alert

from gpu_runbooks.workers.intake.alert_faults import AlertIgnored, fault_of
from gpu_runbooks.workers.intake.alertmanager import Alert


@pytest.mark.parametrize("name", ["GpuRunbookNeedsOperator", "GpuRunbookStorm", "GpuRunbookLeftBlocked"])
@pytest.mark.parametrize("labels", [{"node": "gpu-1"}, {"node": "gpu-1", "xid": "79"}])
@pytest.mark.parametrize("status", ["firing", "resolved"])
def test_alert_of_ours_opens_nothing_and_says_why(name, labels, status):
    with pytest.raises(AlertIgnored, match=f"{name} is an alert of gpu-runbooks itself"):
        fault_of(Alert.model_validate(alert(status, alertname=name, **labels)), RECEIVED)


@pytest.mark.parametrize("name", ["GpuXidCritical", "SiteGpuRunbookNeedsOperator", "gpurunbookneedsoperator"])
def test_other_alerts_are_faults_as_before(name):
    fault = fault_of(Alert.model_validate(alert(alertname=name, node="gpu-1")), RECEIVED)
    assert fault.code == name
