"""Role `cloud-worker`: everything that touches AWS. Needs the IAM policy of its manifest."""

import asyncio

from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.names import CLOUD_QUEUE
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.temporal_connection import connect, run_worker


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Work on the queue `cloud` until `stop` is set."""
    cloud = Cloud(Aws.connect(settings.cluster), settings.reboot_command)
    await run_worker(
        await connect(),
        stop,
        task_queue=CLOUD_QUEUE,
        activities=[
            cloud.inspect_instance,
            cloud.reboot_instance,
            cloud.run_reboot_command,
            cloud.launch_successor,
            cloud.replace_instance,
            cloud.await_successor,
            cloud.confirm_replacement,
        ],
    )
