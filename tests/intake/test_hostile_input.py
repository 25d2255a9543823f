"""Whatever is posted to the webhook: a clear answer, nothing started that should not be, nothing lost beside.

The generated notifications are the same ones each time. `make fuzz` tries many more.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as some
from intake.alerts import fresh, notification
from intake.conftest import CLUSTER, TOKEN, Webhook

from gpu_runbooks.activities.names import incident_id
from testbed.temporal import Temporal

# The intake runs in this process, and its pauses are random: hypothesis takes that for chance in a strategy.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

DESCRIPTION = Path(__file__).parents[2] / "docs" / "webhook.openapi.yaml"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))

SOME_OF_THEM = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

HOSTILE = (
    *("../gpu", "--all", "{{ $labels.node }}", "${NODE}", "$(reboot)", "gpu-a1:9400", "10.0.0.1:9400"),
    *("gpu\x00", "gpu\nINFO started", "\x1b[31m", "\u202egpu", "gpu\u0430", "GPU-A1", "gpu-a1.", "a" * 300),
    *("' OR 1=1 --", "%2e%2e%2f", "http://127.0.0.1:10250/", "file:///etc/passwd", "=cmd|' /C calc'!A0", ""),
)
MOMENTS = (
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-03-01T10:00:00.123456789Z", "1e9", "", "now"),
    *("2026-03-01T10:00:00", "2026-02-30T10:00:00Z", "2026-03-01T10:00:00+99:00", "+292277026596-12-04"),
)


def anything() -> some.SearchStrategy[Any]:
    """JSON of any shape, deep and wide."""
    leaves = (
        some.none()
        | some.booleans()
        | some.integers()
        | some.floats()
        | some.text()
        | some.sampled_from(HOSTILE)
    )
    return some.recursive(
        leaves,
        lambda inner: some.lists(inner, max_size=5) | some.dictionaries(some.text(), inner),
        max_leaves=30,
    )


def alerts(node: str) -> some.SearchStrategy[Any]:
    """Alerts of which some are right, some nearly, and some not at all. The node is one that exists."""
    texts = some.text(max_size=50) | some.sampled_from((*HOSTILE, node, "79"))
    labels = some.sampled_from(("node", "Hostname", "alertname", "xid", "sxid", "UUID", "pod", "namespace"))
    near = some.fixed_dictionaries(
        {
            "status": some.sampled_from(("firing", "resolved", "suppressed")) | anything(),
            "labels": some.dictionaries(labels | texts, texts | anything(), max_size=8),
            "startsAt": some.sampled_from(MOMENTS) | anything(),
            "fingerprint": texts | anything(),
        },
        optional={"annotations": some.dictionaries(texts, texts | anything()), "generatorURL": texts},
    )
    right = some.builds(
        lambda name, summary: fresh(node=name) | {"annotations": {"summary": summary}},
        some.sampled_from(HOSTILE) | some.text(max_size=20),
        texts,
    )
    return near | right | anything()


def post(url: str, body: bytes, **headers: str) -> requests.Response:
    """Post, as any client may. A hang is a failure."""
    sent = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"} | headers
    return requests.post(f"{url}/alertmanager", data=body, headers=sent, timeout=60)


def judged(response: requests.Response) -> dict[str, Any]:
    """The answer, if it is one that the webhook may give."""
    assert response.status_code in {200, 400, 413, 503}, response.text
    assert "Traceback" not in response.text
    answer = response.json()
    assert "error" in answer or "alerts" in answer
    return answer


async def incidents_of_others(temporal: Temporal, node: str) -> list[str]:
    """Incidents of nodes of which there is none: the tests' nodes are named by random digits."""
    found = [run.id async for run in temporal.client.list_workflows("WorkflowType = 'NodeRemediation'")]
    known = {incident_id(CLUSTER, node)}
    return [each for each in found if each not in known and not each.startswith(f"node/{CLUSTER}/gpu-")]


@pytest.mark.usefixtures("controller")
async def test_no_notification_does_what_it_should_not(
    webhook: Webhook, temporal: Temporal, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    beside = fresh(node=node, fingerprint="beside")  # with one onset: another would be news, and paced

    @SOME_OF_THEM
    @given(some.lists(alerts(node), max_size=6), anything())
    def fuzz(generated: list[Any], truncated: Any) -> None:
        body = json.dumps(notification(*generated, beside)).encode("utf-8", "surrogatepass")
        answer = judged(post(webhook.url, body))
        if "alerts" in answer:
            assert len(answer["alerts"]) == len(generated) + 1
            assert answer["alerts"][-1]["status"] in {"started", "joined", "duplicate"}, (
                "lost beside the others"
            )
            for each in answer["alerts"]:
                assert each["node"] in {"", node}
        judged(post(webhook.url, json.dumps(notification(beside, truncatedAlerts=truncated)).encode()))

    await asyncio.to_thread(fuzz)

    assert await incidents_of_others(temporal, node) == []
    for record in caplog.records:
        line = record.getMessage()
        assert line.isprintable()
        assert len(line) < 3000


@pytest.mark.usefixtures("controller")
async def test_any_bytes_are_answered(webhook: Webhook) -> None:
    @SOME_OF_THEM
    @given(some.binary(max_size=2000) | anything().map(lambda value: json.dumps(value).encode()))
    def fuzz(body: bytes) -> None:
        judged(post(webhook.url, body))

    await asyncio.to_thread(fuzz)


@pytest.mark.usefixtures("controller")
async def test_the_description_is_kept(webhook: Webhook, temporal: Temporal, node: str) -> None:
    """Requests made from the OpenAPI description, right and wrong ones, and answers checked against it."""
    schema = schemathesis.openapi.from_path(str(DESCRIPTION))
    operation = schema["/alertmanager"]["POST"]

    @SOME_OF_THEM
    @given(case=operation.as_strategy())
    def fuzz(case: schemathesis.Case) -> None:
        response = case.call(base_url=webhook.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        case.validate_response(response, headers={"Authorization": f"Bearer {TOKEN}"})

    await asyncio.to_thread(fuzz)
    assert await incidents_of_others(temporal, node) == []


@pytest.mark.usefixtures("controller")
async def test_many_nodes_at_once(webhook: Webhook, make_node: Callable[..., Awaitable[str]]) -> None:
    """One notification about many, and many notifications about one each."""
    nodes = await asyncio.gather(*(make_node() for _ in range(60)))
    together, each = nodes[:30], nodes[30:]

    status, body = await webhook.post(*(fresh(node=name, fingerprint=name) for name in together))
    singles = await asyncio.gather(*(webhook.post(fresh(node=name)) for name in each))

    assert status == 200
    assert {answer["status"] for answer in body["alerts"]} == {"started"}
    assert {status for status, _ in singles} == {200}
    assert {answer["alerts"][0]["status"] for _, answer in singles} == {"started"}
