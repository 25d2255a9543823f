"""Role `cloud-worker`: everything that touches AWS. Needs the IAM policy of its manifest."""

import asyncio

from gpu_runbooks.activities.aws import Aws
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.names import CLOUD_QUEUE
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.temporal_connection import connect, run_worker


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Work on the queue `cloud` until `stop` is set."""
    cloud = Cloud(Aws.connect(settings.cluster))
    await run_worker(
        await connect(),
        stop,
        task_queue=CLOUD_QUEUE,
        activities=[cloud.reboot_instance, cloud.replace_instance, cloud.confirm_replacement],
    )
