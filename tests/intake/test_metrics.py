"""What `/metrics` of the intake says after real deliveries, and that it names nobody."""

import aiohttp
import pytest
from intake.alerts import fresh
from intake.conftest import Webhook
from intake.test_policy_health import quick_look, until  # noqa: F401  a fixture
from prometheus_client.parser import text_string_to_metric_families

from gpu_runbooks.workers.intake.metrics import Metrics


async def scraped(webhook: Webhook) -> tuple[str, dict[str, float]]:
    """The text, and its samples; without a token."""
    async with aiohttp.ClientSession() as session, session.get(f"{webhook.url}/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        text = await response.text()
    samples = {
        each.name + "".join(f" {name}={value}" for name, value in sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    return text, samples


@pytest.mark.usefixtures("controller")
async def test_signals_truncations_and_notifications_are_counted_without_names(
    webhook: Webhook, node: str
) -> None:
    alerts = [fresh(node=node, xid="79"), fresh(fingerprint="f2", xid="-1"), fresh("resolved", node=node)]
    await webhook.post(*alerts, truncatedAlerts=38)
    await webhook.post(*alerts, truncatedAlerts=2)
    await webhook.post(*alerts, token="another-token")

    text, samples = await scraped(webhook)

    counted = {
        name: value for name, value in samples.items() if name.startswith("gpu_runbooks_signals_total")
    }
    assert counted == {
        "gpu_runbooks_signals_total source=alertmanager status=started": 1,
        "gpu_runbooks_signals_total source=alertmanager status=duplicate": 1,
        "gpu_runbooks_signals_total source=alertmanager status=refused": 2,
        "gpu_runbooks_signals_total source=alertmanager status=ignored": 2,
    }
    assert samples["gpu_runbooks_truncated_alerts_total"] == 40
    assert samples["gpu_runbooks_webhook_duration_seconds_count"] == 2
    assert samples["gpu_runbooks_policy_problem"] == 0
    assert node not in text
    assert "GpuXidCritical" not in text


async def test_a_policy_file_that_errs_shows(quick_look: None, tmp_path, webhook: Webhook) -> None:  # noqa: F811
    file = tmp_path / "policy.yaml"
    file.write_text(f"{file.read_text()}\nno_such_field: 1\n")
    await until(webhook, lambda health: health["policy_problem"] != "")

    assert (await scraped(webhook))[1]["gpu_runbooks_policy_problem"] == 1


def test_two_intakes_of_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.answered("alertmanager", "started")

    assert b'status="started"' in one.exposition()
    assert b'status="started"' not in other.exposition()
