"""The rules for Prometheus: readable, about metrics that exist, and by names that the intake ignores."""

import re
from pathlib import Path

import yaml

from gpu_runbooks.activities.paging.alert import is_ours
from gpu_runbooks.workers.intake.metrics import Metrics

RULES = Path(__file__).parents[2] / "deploy" / "alert-rules.yaml"


def test_rules_name_what_the_intake_exports():
    metrics = Metrics()
    metrics.answered("alertmanager", "unavailable")
    metrics.truncated(1)
    exported = metrics.exposition().decode()
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]:
        (metric,) = re.findall(r"gpu_runbooks_\w+", rule["expr"])
        assert f"\n{metric}" in exported
        assert is_ours({"alertname": rule["alert"]})
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
