"""Process that stands in for EC2, Auto Scaling and SQS: moto's server, a log of the calls, and the bridge.

moto keeps no record of a reboot, so the server's front looks at the calls as they pass and tells the bridge.
Started by `cloud.Cloud`; it reads the kubeconfig as soon as there is one.
"""

import argparse
import asyncio
import io
import os
import re
import select
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIEnvironment

import boto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from gpu_runbooks.activities.aws.instance_owner import GROUP_TAG
from gpu_runbooks.activities.kubernetes.client import Kubernetes
from testbed.aws_faults import REFUSED, AwsFaults
from testbed.bridge import Bridge, Instance
from testbed.call_log import Call, append_call

TESTBED_CALLER = "TESTBED"
"""Access key id of the testbed's own calls, which are not logged."""

TERMINATE = "TerminateInstanceInAutoScalingGroup"

FAULTS = "aws-faults"
"""Folder beside the log through which faults are asked for."""

CALLER = re.compile(r"Credential=([^/]+)/")


class Front:
    """WSGI application before moto's: logs each call, passes on what the bridge must know, makes faults."""

    def __init__(self, application: Any, log: Path, seen: Callable[[Call], None], faults: AwsFaults) -> None:
        self._application = application
        self._log = log
        self._seen = seen
        self._faults = faults

    def __call__(self, environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        environment["wsgi.input"] = io.BytesIO(body)
        call = _call(body, environment)
        ours = call.caller == TESTBED_CALLER
        gave_up = partial(_gave_up, environment)
        verdict = "pass" if ours else self._faults.before(call.action, call.instance_ids, gave_up)
        if verdict == "refuse":
            start_response("503 Service Unavailable", [("Content-Type", "text/xml")])
            return [REFUSED]
        if verdict == "drop":
            return _drop(environment, start_response)
        statuses: list[int] = []

        def remember(status: str, *rest: Any) -> Any:
            statuses.append(int(status.split(maxsplit=1)[0]))
            return start_response(status, *rest)

        answer = list(self._application(environment, remember))
        if call.action:
            self._note(replace(call, status=statuses[-1]))
        if not ours and self._faults.after(call.action, call.instance_ids, gave_up) == "drop":
            return _drop(environment, start_response)
        return answer

    def _note(self, call: Call) -> None:
        if call.caller != TESTBED_CALLER:
            append_call(self._log, call)
        self._seen(call)


def _call(body: bytes, environment: WSGIEnvironment) -> Call:
    """The call that is asked for, not answered yet. SQS's and moto's own have no action."""
    parameters = dict(parse_qsl(body.decode(errors="replace")))
    found = CALLER.search(environment.get("HTTP_AUTHORIZATION", ""))
    return Call(
        action=parameters.get("Action", ""),
        # What carries no signature is the testbed's look whether the server is up.
        caller=found[1] if found else TESTBED_CALLER,
        instance_ids=tuple(value for name, value in parameters.items() if name.startswith("InstanceId")),
        status=0,
    )


def _gave_up(environment: WSGIEnvironment) -> bool:
    """Whether the caller has closed the connection."""
    connection: socket.socket = environment["werkzeug.socket"]
    readable, _, _ = select.select([connection], [], [], 0)
    try:
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _drop(environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Close the connection in place of an answer."""
    with suppress(OSError):
        environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    start_response("500 Internal Server Error", [])
    return [b""]


def running_instances(ec2: Any) -> list[Instance]:
    """All instances that EC2 knows, the terminated ones too."""
    return [
        Instance(
            instance_id=instance["InstanceId"],
            instance_type=instance["InstanceType"],
            zone=instance["Placement"]["AvailabilityZone"],
            running=instance["State"]["Name"] == "running",
        )
        for page in ec2.get_paginator("describe_instances").paginate()
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]


def _keep_group_tag(instances: Iterable[str], group: str) -> None:
    """Let terminated instances keep the tag of their group, as EC2 does for a while; moto drops it."""
    region = os.environ["AWS_DEFAULT_REGION"]
    ec2_backends[DEFAULT_ACCOUNT_ID][region].create_tags(list(instances), {GROUP_TAG: group})


async def serve(port: int, kubeconfig: Path, log: Path, group: str) -> None:
    """Serve EC2 at once, and keep the Nodes in step as soon as there is a control plane."""
    loop = asyncio.get_running_loop()
    bridges: list[Bridge] = []

    def seen(call: Call) -> None:
        if call.action == TERMINATE and call.status == 200:
            _keep_group_tag(call.instance_ids, group)
        for bridge in bridges:
            if call.action == "RebootInstances" and call.status == 200:
                for instance_id in call.instance_ids:
                    loop.call_soon_threadsafe(bridge.reboot, instance_id)
            elif not call.action.startswith("Describe"):
                loop.call_soon_threadsafe(bridge.look)

    faults = AwsFaults(log.with_name(FAULTS))
    front = Front(DomainDispatcherApplication(create_backend_app), log, seen, faults)
    server = make_server("127.0.0.1", port, front, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not kubeconfig.exists():
        await asyncio.sleep(0.1)
    os.environ["KUBECONFIG"] = str(kubeconfig)
    ec2 = boto3.client(
        "ec2",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=os.environ["AWS_DEFAULT_REGION"],
        aws_access_key_id=TESTBED_CALLER,
        aws_secret_access_key=TESTBED_CALLER,
    )
    async with Kubernetes.connect() as kubernetes:
        bridge = Bridge(kubernetes, lambda: running_instances(ec2))
        bridges.append(bridge)
        await bridge.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.ec2_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of whoever may write Nodes")
    parser.add_argument("--log", type=Path, required=True, help="file for the calls")
    parser.add_argument("--group", required=True, help="name of the Auto Scaling group of all GPU nodes")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.kubeconfig, arguments.log, arguments.group))


if __name__ == "__main__":
    main()
