"""Role `intake`: all sources in one process. Needs a Temporal client and read of nodes."""

import asyncio

from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.intake.sources import SOURCES
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.temporal_connection import connect


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Run every source until `stop` is set. Starts without Temporal, and answers "later" until it is there.

    Raises `ValueError` and `OSError` for an address, token or policy that cannot be used.
    """
    policy_file = PolicyFile(settings)
    async with Kubernetes.connect() as kubernetes:
        reception = Reception(kubernetes, Incidents(await connect(lazy=True), settings.cluster), policy_file)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(policy_file.watch(stop))
                for name, source in SOURCES.items():
                    group.create_task(source(reception.of_source(name), settings, stop))
        except* (ValueError, OSError) as failed:
            raise failed.exceptions[0] from None  # the first says it all, and a person reads it
