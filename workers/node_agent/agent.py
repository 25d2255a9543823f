"""The role `node-agent`: one process per GPU node, with the token of its own Pod and nothing else."""

import asyncio

from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.workers.node_agent.collection import Collector
from gpu_runbooks.workers.node_agent.health import HealthLoop
from gpu_runbooks.workers.node_agent.nvidia_smi import ResetTool
from gpu_runbooks.workers.node_agent.nvml import Nvml
from gpu_runbooks.workers.node_agent.probe import Probe
from gpu_runbooks.workers.node_agent.reboot import Init
from gpu_runbooks.workers.node_agent.reset import Resetter
from gpu_runbooks.workers.node_agent.tasks import TaskLoop
from gpu_runbooks.workers.settings import Settings


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Report health and carry out tasks until `stop` is set.

    Raises `ValueError` without a node name, and `kubernetes.aio.config.ConfigException` without credentials.
    """
    if not settings.node_name:
        raise ValueError("GPU_RUNBOOKS_NODE_NAME is not set: the agent must know its node (downward API)")
    probe = Probe(Nvml(settings.sysfs, settings.proc, settings.boot_id_file, settings.kubelet))
    async with Kubernetes.connect() as kubernetes:
        health = HealthLoop(kubernetes, node=settings.node_name, probe=probe)
        tasks = TaskLoop(
            kubernetes,
            namespace=settings.namespace,
            node=settings.node_name,
            boot_id_file=settings.boot_id_file,
            probe=probe,
            resetter=Resetter(probe, ResetTool(), proc=settings.proc, kernel_log=settings.kernel_log),
            collector=Collector(settings.kernel_log, settings.dcgm_command),
            init=Init(settings.proc, settings.init_pid),
            lock=settings.agent_lock,
        )
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(health.run()), group.create_task(tasks.run())]
            await stop.wait()
            for loop in loops:
                loop.cancel()
