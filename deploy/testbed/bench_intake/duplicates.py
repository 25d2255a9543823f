"""What 10,000 deliveries of one fault add to its incident's history: the real webhook, workflow and Temporal.

The incident waits in its toleration. Each delivery is a notification of its own, as two replicas of
Alertmanager send it, so that every one of them goes the whole way.
"""

import asyncio
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from temporalio.client import Client

from gpu_runbooks.activities.names import incident_id
from testbed.background import together
from testbed.cloud import Cloud
from testbed.control_plane import ControlPlane
from testbed.nodes import gpu_node
from testbed.processes import Processes
from testbed.product import MANIFESTS, Product
from testbed.temporal import Temporal

POLICY = Path(__file__).with_suffix(".yaml")
CLUSTER = "bench"
NODE = "gpu-bench"

DELIVERIES = 10_000
AT_ONCE = 8
SETTLED_SECONDS = 2.0
"""A history that did not grow for so long grows no more by itself."""


async def measure(deliveries: int = DELIVERIES, faults: int = 1) -> dict[str, float]:
    """Events that the deliveries of some faults added, the first of each aside."""
    with tempfile.TemporaryDirectory(prefix="gpu-runbooks-") as name:
        directory = Path(name)
        async with Processes(directory / "logs") as processes:
            plane = ControlPlane(directory, processes)
            temporal = Temporal(directory, processes)
            unused = Cloud(directory, processes, plane.kubeconfig("admin"), CLUSTER)  # never started
            product = Product(directory, processes, plane, temporal, unused, cluster=CLUSTER, policy=POLICY)
            await together(plane.launch(), temporal.start())
            async with plane.client() as kubernetes:
                await plane.apply_kustomization(MANIFESTS)
                body = gpu_node(NODE, "i-0aaaaaaaaaaaaaaa1")
                await kubernetes.request("POST", "/api/v1/nodes", body=body)
                await together(product.start("controller"), product.start("intake"))
                return await deliver(product, temporal.client, deliveries, faults)


async def deliver(product: Product, client: Client, deliveries: int, faults: int) -> dict[str, float]:
    """Open the incident, and deliver its faults again and again. Raises `RuntimeError` for a lost one."""
    headers = {"Authorization": f"Bearer {product.token_file.read_text().strip()}"}
    incident = client.get_workflow_handle(incident_id(CLUSTER, NODE))
    onset = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    answers: Counter[str] = Counter()
    left = iter(range(deliveries))

    async with aiohttp.ClientSession(headers=headers) as session:

        async def post(fault: int) -> str:
            async with session.post(product.webhook, json=notification(fault, onset)) as response:
                answer = await response.json()
                return f"{response.status} {answer['alerts'][0]['status'] if 'alerts' in answer else answer}"

        async def repeat() -> None:
            for number in left:
                answers[await post(number % faults)] += 1

        opened = [await post(fault) for fault in range(faults)]
        before = await _settled(incident)
        began = time.perf_counter()
        await asyncio.gather(*(repeat() for _ in range(AT_ONCE)))
        took = time.perf_counter() - began
        after = await _settled(incident)
    if set(answers) != {"200 duplicate"} or not all(each.startswith("200 ") for each in opened):
        raise RuntimeError(f"not every delivery was taken: {opened}, then {dict(answers)}")
    status = await incident.query("status")
    return {
        f"events_added_by_{deliveries}_duplicates": after - before,
        "deliveries_per_second": deliveries / took,
        "deliveries_counted": sum(fault["count"] for fault in status["faults"]),
    }


def notification(fault: int, onset: str) -> dict[str, Any]:
    """A notification about one fault of the node."""
    alert = {
        "status": "firing",
        "labels": {"alertname": "BenchFault", "node": NODE, "gpu": str(fault)},
        "startsAt": onset,
        "fingerprint": f"{fault:016x}",
    }
    return {"version": "4", "alerts": [alert], "truncatedAlerts": 0}


async def _settled(incident: Any) -> int:
    """Length of the history as soon as it does not grow by itself."""
    length, since = -1, time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        now = (await incident.describe()).history_length
        if now != length:
            length, since = now, time.monotonic()
        await asyncio.sleep(0.1)
    return length
