"""Role `cluster-worker`: everything that touches Kubernetes. Needs the Kubernetes role of its manifest."""

import asyncio

from gpu_runbooks.activities.cluster import Cluster
from gpu_runbooks.activities.evidence.evidence import Evidence
from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.names import CLUSTER_QUEUE
from gpu_runbooks.activities.paging.alertmanagers import Alertmanagers
from gpu_runbooks.workers.hardware.retention import warn_of_short_retention
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.sweeping import cluster_sweep
from gpu_runbooks.workers.temporal_connection import connect, run_worker


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Work on the queue `cluster` until `stop` is set.

    Raises `ValueError` and `OSError` for a policy or a place for evidence that cannot be used.
    """
    policy_file = PolicyFile(settings)
    evidence = Evidence.at(settings.evidence)
    async with (
        Kubernetes.connect() as kubernetes,
        Alertmanagers.connect(settings.alertmanager) as alertmanagers,
    ):
        cluster = Cluster(
            kubernetes,
            policy_file.plan,
            settings.namespace,
            own_pod_uid=settings.pod_uid,
            own_node=settings.node_name,
            evidence=evidence,
            alertmanagers=alertmanagers,
        )
        client = await connect()
        sweep = cluster_sweep(kubernetes, client, policy_file, settings)
        await warn_of_short_retention(client, policy_file.policy)
        working = run_worker(
            client,
            stop,
            task_queue=CLUSTER_QUEUE,
            activities=[
                cluster.plan_incident,
                cluster.observe_node,
                cluster.observe_pool,
                cluster.block_node,
                cluster.unblock_node,
                cluster.notify_owner,
                cluster.page,
                cluster.drain_pods,
                cluster.examine_node,
                cluster.pause_gpu_services,
                cluster.resume_gpu_services,
                cluster.run_node_task,
                cluster.delete_node_task,
                cluster.await_reboot,
                cluster.claim_replacement,
                cluster.delete_node_claim,
                cluster.await_node_claim,
                cluster.remove_node,
                cluster.run_test_pod,
                *sweep.activities(),
            ],
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(working)
            group.create_task(policy_file.watch(stop))
