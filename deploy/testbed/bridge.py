"""What joins EC2 and Kubernetes on a real cluster: kubelets that register, a cloud that restarts machines.

Every running instance gets a Node, the Node of an instance that is gone goes with its Pods, and a reboot of
an instance becomes the reboot that kwok acts out on its Node.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.nodes import GPU_INSTANCE_TYPE, gpu_node, reboot_annotations, system_node

REBOOT_SECONDS = 2
"""How long a node is down in a reboot. A p5.48xlarge takes minutes."""

JOIN_SECONDS = 1.0
"""From launch to the registration of the Node. A p5.48xlarge takes minutes."""

LOOK_EVERY = 2.0
"""Seconds between looks at EC2 when no call to it was seen."""


@dataclass(frozen=True)
class Instance:
    """An EC2 instance, as far as a Node shows of it."""

    instance_id: str
    instance_type: str
    zone: str
    running: bool


class Bridge:
    """Keeps the Nodes in step with the instances."""

    def __init__(self, kubernetes: Kubernetes, instances: Callable[[], list[Instance]]) -> None:
        self._kubernetes = kubernetes
        self._instances = instances
        self._changed = asyncio.Event()
        self._reboots: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._joined: dict[str, int] = {}
        """Highest number given to a node, by the prefix of its name."""

    def look(self) -> None:
        """EC2 has changed something."""
        self._changed.set()

    def reboot(self, instance_id: str) -> None:
        """EC2 was asked to reboot an instance. The boot id is drawn here, so that one call is one reboot."""
        self._reboots.put_nowait((instance_id, str(uuid.uuid4())))

    async def run(self) -> None:
        """Keep in step until cancelled. The first instances join at once, later ones take their time."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._restart_nodes())
            delay = 0.0
            while True:
                self._changed.clear()
                try:
                    await self._keep_in_step(delay)
                    delay = JOIN_SECONDS
                except KubernetesError as error:
                    print(f"looking again in {LOOK_EVERY} s: {error}", flush=True)
                try:
                    await asyncio.wait_for(self._changed.wait(), LOOK_EVERY)
                except TimeoutError:
                    continue

    async def _keep_in_step(self, join_delay: float) -> None:
        instances = {instance.instance_id: instance for instance in await asyncio.to_thread(self._instances)}
        nodes = {
            identity_of(node).instance_id: node for node in await self._kubernetes.items("/api/v1/nodes")
        }
        nodes.pop("", None)
        for instance_id, node in nodes.items():
            if instance_id not in instances or not instances[instance_id].running:
                await self._remove(node["metadata"]["name"])
        new = [i for i in instances.values() if i.running and i.instance_id not in nodes]
        if new:
            await asyncio.sleep(join_delay)
            for node in nodes.values():
                self._note_name(node["metadata"]["name"])
            await asyncio.gather(*(self._join(instance) for instance in new))

    def _note_name(self, name: str) -> None:
        prefix, _, number = name.rpartition("-")
        if number.isdecimal():
            self._joined[prefix] = max(self._joined.get(prefix, 0), int(number))

    async def _join(self, instance: Instance) -> None:
        has_gpus = instance.instance_type == GPU_INSTANCE_TYPE
        prefix = "gpu" if has_gpus else "system"
        number = self._joined[prefix] = self._joined.get(prefix, 0) + 1
        make = gpu_node if has_gpus else system_node
        node = make(f"{prefix}-{number:02}", instance.instance_id, zone=instance.zone)
        await self._kubernetes.request("POST", "/api/v1/nodes", body=node)

    async def _remove(self, name: str) -> None:
        """Delete a Node, and its Pods without their grace period: their machine is gone."""
        at_once = {"gracePeriodSeconds": 0}
        for pod in await self._kubernetes.items("/api/v1/pods", field_selector=f"spec.nodeName={name}"):
            metadata = pod["metadata"]
            await self._delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", at_once)
        await self._delete(f"/api/v1/nodes/{name}", {})

    async def _delete(self, path: str, options: Object) -> None:
        try:
            await self._kubernetes.request(
                "DELETE", path, body={"kind": "DeleteOptions", "apiVersion": "v1", **options}
            )
        except KubernetesError as error:
            if error.status != 404:
                raise

    async def _restart_nodes(self) -> None:
        while True:
            instance_id, boot_id = await self._reboots.get()
            try:
                await self._restart_node(instance_id, boot_id)
            except KubernetesError as error:
                print(f"rebooting {instance_id} again in 1 s: {error}", flush=True)
                await asyncio.sleep(1)
                self._reboots.put_nowait((instance_id, boot_id))

    async def _restart_node(self, instance_id: str, boot_id: str) -> None:
        """Ask kwok for the reboot. Of an instance without a Node nothing is to be seen."""
        body = {"metadata": {"annotations": reboot_annotations(REBOOT_SECONDS, boot_id)}}
        for node in await self._kubernetes.items("/api/v1/nodes"):
            if identity_of(node).instance_id == instance_id:
                path = f"/api/v1/nodes/{node['metadata']['name']}"
                await self._kubernetes.request("PATCH", path, body=body, content_type=MERGE_PATCH)
