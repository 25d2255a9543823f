"""The commands for a trial on the pages send what the intake reads."""

import json
import re
from pathlib import Path

from policy.factories import SMALLEST

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workers.intake.alert_faults import fault_of
from gpu_runbooks.workers.intake.alertmanager import Alert, read_webhook, target_of
from gpu_runbooks.workers.intake.reported_conditions import conditions_of
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.node_conditions import watched_conditions

DOCS = Path(__file__).parents[2] / "docs"
TIME = "2026-03-01T10:00:00Z"


def body(page: str, command: str) -> str:
    """What the command of a page sends, with a time where the shell puts one."""
    (written,) = re.findall(
        rf"^{command}.*?'(\s*{{.*?}})'$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )
    return written.replace("""'"$(date -u +%FT%TZ)"'""", TIME)


def test_the_sample_alert_is_a_fault_of_its_node():
    (alert,) = read_webhook(body("intake.md", "curl").encode()).alerts
    assert isinstance(alert, Alert)
    assert target_of(alert, ["node"], {"NODE"}) == "NODE"
    fault = fault_of(alert, alert.starts_at)
    assert (fault.source, fault.code, fault.summary) == (FaultSource.XID, "79", "a trial")


def test_the_sample_condition_is_bad():
    patch = json.loads(body("node-conditions.md", "kubectl patch"))
    (bad,) = conditions_of(patch, watched_conditions(load_policy(SMALLEST))).bad
    assert (bad.type, bad.status, bad.reason, bad.summary) == ("KernelDeadlock", "True", "Trial", "a trial")
    assert bad.since is not None
