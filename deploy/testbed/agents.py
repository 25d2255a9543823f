"""The node agents of the fleet, and the machines that they believe to be on.

In a cluster the agent is a DaemonSet pod; kwok's pods run nothing, so the testbed runs the process that the
pod stands for: with the pod's own token, with its node's GPUs behind NVML, and anew after each boot.
"""

import asyncio
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.nodes.test_pod import gpus_of
from testbed import gpu_allocations, gpu_processes, gpus
from testbed.control_plane import NAMESPACE, ControlPlane
from testbed.fleet import POOL_SELECTOR, Fleet, is_ready
from testbed.processes import PartFailedError, Processes

AGENT_PODS = "app.kubernetes.io/component=node-agent"
EFA_INTERFACES = 32
BOOT_TRIES = 3

PROGRAM = Path(sys.executable).with_name("gpu-runbooks")
"""The product's command, from the environment that runs the testbed."""


@dataclass(frozen=True)
class Machine:
    """What lies behind one Node: the files that its agent reads."""

    directory: Path
    uid: str
    """Of the Node: another one under the same name is another machine."""

    @property
    def gpus(self) -> Path:
        """State file of the GPUs; `testbed.gpus` reads and changes it."""
        return self.directory / "gpus"

    @property
    def boot_id(self) -> Path:
        return self.directory / "boot_id"

    @property
    def sysfs(self) -> Path:
        return self.directory / "sys"

    @property
    def proc(self) -> Path:
        """Processes of the machine: the Fabric Manager, and those that hold GPUs."""
        return self.directory / "proc"

    @property
    def kubelet(self) -> Path:
        """Records of the machine's kubelet."""
        return self.directory / "kubelet"

    @property
    def kernel_log(self) -> Path:
        """Kernel log since the boot, in the format of `/dev/kmsg`."""
        return self.directory / "kmsg"

    @property
    def agent_lock(self) -> Path:
        """What an agent locks while it acts."""
        return self.directory / "agent.lock"

    def assemble(self, node: str) -> None:
        """A healthy machine with all its GPUs and EFA interfaces."""
        for number in range(EFA_INTERFACES):
            (self.sysfs / "class" / "infiniband" / f"efa_{number}").mkdir(parents=True)
        self._start_processes()
        self.kernel_log.touch()
        gpu_allocations.assemble(self.kubelet)
        gpus.write_state(self.gpus, gpus.healthy_gpus(node=f"{node}.{self.uid}"))

    def hold(self, gpu_uuid: str, pod_uid: str | None = None) -> int:
        """Let a process of a pod that runs, or of none, hold a GPU. Returns its pid.

        It ends with its pod or at the next boot. Raises `ValueError` where no GPU has this UUID.
        """
        return gpu_processes.hold(self.gpus, self.proc, gpu_uuid, pod_uid)

    def allocate(self, gpu_uuid: str, pod_uid: str) -> None:
        """Give a GPU to a pod, as its kubelet would at the pod's start; it has it until it ends."""
        gpu_allocations.allocate(self.kubelet, gpu_uuid, pod_uid)

    def start_pod(self, pod_uid: str, count: int) -> None:
        """Give a pod that starts as many GPUs as it asks for."""
        uuids = [gpu.uuid for gpu in gpus.read_state(self.gpus).gpus]
        gpu_allocations.start_pod(self.kubelet, uuids, pod_uid, count)

    def power_cycle(self) -> None:
        """What a reboot cures: a hung driver, lost GPUs, pending repairs; not a bank without spare rows."""
        shutil.rmtree(self.proc)
        self._start_processes()
        self.kernel_log.write_text("")
        with gpus.locked(self.gpus):
            state = gpus.read_state(self.gpus)
            cured = tuple(
                replace(
                    gpu,
                    presence=gpus.Presence.PRESENT,
                    recovery_action=0,
                    ecc_uncorrected=0,
                    remap_pending=0,
                    retirement_pending=0,
                    pids=(),
                    graphics_pids=(),
                    persistence=1,  # its daemon sets it at each boot
                    instances=(),
                )
                for gpu in state.gpus
            )
            gpus.write_state(self.gpus, replace(state, gpus=cured, init=0, hang=()))

    def _start_processes(self) -> None:
        self.proc.mkdir()
        gpu_processes.start_fabric_manager(self.proc)


class Agents:
    """Agent processes by node. One that was started comes back with every boot of its node.

    As soon as one was started, a node that joins gets one as well: it may be the replacement.
    """

    def __init__(self, directory: Path, processes: Processes, plane: ControlPlane, fleet: Fleet) -> None:
        self._directory = directory / "machines"
        self._processes = processes
        self._plane = plane
        self._fleet = fleet
        self._machines: dict[str, Machine] = {}
        self._wanted: set[str] = set()

    def machine(self, node: str) -> Machine:
        """The machine behind a node of the pool. Raises `KeyError` for another node."""
        return self._machines[node]

    async def start(self, node: str) -> None:
        """Start the agent of a node: now, and after each of its boots."""
        self._wanted.add(node)
        await self._run(node)

    def runs(self, node: str) -> bool:
        """Whether the agent of a node runs now."""
        return _name(node) in self._processes.running()

    async def kill(self, node: str) -> None:
        """Kill the agent of a node, if it runs. It is dead until the node boots."""
        self._wanted.add(node)
        await self._stop(node)

    async def follow(self, kubernetes: Kubernetes) -> None:
        """Keep the machines in step with the Nodes and Pods. Goes on until it is cancelled."""
        async with asyncio.TaskGroup() as boots:
            boots.create_task(self._follow_pods(kubernetes))
            async for objects in kubernetes.follow("/api/v1/nodes", label_selector=POOL_SELECTOR):
                nodes = {node["metadata"]["name"]: node for node in objects.values()}
                for name, machine in list(self._machines.items()):
                    if name not in nodes or nodes[name]["metadata"]["uid"] != machine.uid:
                        await self._remove(name)
                for name, node in nodes.items():
                    if await self._keep_in_step(name, node):
                        boots.create_task(self._boot(name))

    async def _follow_pods(self, kubernetes: Kubernetes) -> None:
        """Give each pod its GPUs, and let go of them when it ended or went away."""
        lived: set[str] = set()
        async for pods in kubernetes.follow("/api/v1/pods"):
            live = {uid for uid, pod in pods.items() if pod["status"].get("phase") in {"Pending", "Running"}}
            for uid in live:
                machine = self._machines.get(pods[uid]["spec"].get("nodeName", ""))
                if machine is not None:
                    machine.start_pod(uid, gpus_of(pods[uid]))
            for uid in lived - live:
                for machine in self._machines.values():
                    gpu_processes.end_pod(machine.gpus, machine.proc, uid)
                    gpu_allocations.end_pod(machine.kubelet, uid)
            lived = live

    async def _keep_in_step(self, name: str, node: Object) -> bool:
        """Bring one machine in step. Returns whether its agent is due to start, since the machine booted."""
        boot_id = node["status"]["nodeInfo"]["bootID"]
        if name not in self._machines:
            machine = Machine(self._directory / name, node["metadata"]["uid"])
            machine.assemble(name)
            machine.boot_id.write_text(boot_id + "\n")
            self._machines[name] = machine
            joined_later = bool(self._wanted)
            if joined_later:
                self._wanted.add(name)
            return joined_later
        machine = self._machines[name]
        if machine.boot_id.read_text().strip() != boot_id:
            machine.power_cycle()
            machine.boot_id.write_text(boot_id + "\n")
            return name in self._wanted
        if "gpu-runbooks.dev/reboot" in node["metadata"].get("annotations", {}) and not is_ready(node):
            await self._stop(name)
        return False

    async def _boot(self, node: str) -> None:
        """Start the agent of a machine that came up. The node, or its Pod, may go away while we do."""
        for more_tries in reversed(range(BOOT_TRIES)):
            try:
                await self._run(node)
                return
            except (PartFailedError, KubernetesError):
                if not more_tries:
                    raise
            await asyncio.sleep(1)
            if node not in self._machines:
                return

    async def _run(self, node: str) -> None:
        """Start the agent, in place of one that runs, with a token of the node's own Pod."""
        pods = await self._fleet.wait_until(
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            _any_live,
            f"pod of the DaemonSet node-agent on {node}",
            label_selector=AGENT_PODS,
            field_selector=f"spec.nodeName={node}",
        )
        pod = next(pod for pod in pods if _is_live(pod))
        kubeconfig = await self._plane.grant("node-agent", pod=pod)
        await self._stop(node)
        command = [str(PROGRAM), "node-agent"]
        await self._processes.start(_name(node), command, self._environment(node, kubeconfig))

    def _environment(self, node: str, kubeconfig: Path) -> Mapping[str, str]:
        machine = self._machines[node]
        return {
            **gpus.environment(machine.gpus),
            "KUBECONFIG": str(kubeconfig),
            "GPU_RUNBOOKS_NAMESPACE": NAMESPACE,
            "GPU_RUNBOOKS_NODE_NAME": node,
            "GPU_RUNBOOKS_BOOT_ID_FILE": str(machine.boot_id),
            "GPU_RUNBOOKS_SYSFS": str(machine.sysfs),
            "GPU_RUNBOOKS_PROC": str(machine.proc),
            "GPU_RUNBOOKS_KUBELET": str(machine.kubelet),
            "GPU_RUNBOOKS_KERNEL_LOG": str(machine.kernel_log),
            "GPU_RUNBOOKS_AGENT_LOCK": str(machine.agent_lock),
        }

    async def _stop(self, node: str) -> None:
        with suppress(KeyError):  # never started
            await self._processes.kill(_name(node))

    async def _remove(self, node: str) -> None:
        await self._stop(node)
        shutil.rmtree(self._machines.pop(node).directory)


def _name(node: str) -> str:
    return f"node-agent-{node}"


def _is_live(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def _any_live(pods: list[Object]) -> bool:
    return any(map(_is_live, pods))
