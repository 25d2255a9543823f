"""The source `aws events` between SQS (moto), a real API server and a real Temporal server."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.loaders import create_loader
from intake.aws_events.world import IAM, Intake, MakeNode, Nodes, Queue, Wire
from intake.aws_messages import REGION
from intake.conftest import CLUSTER, POLICY
from moto.server import ThreadedMotoServer

from gpu_runbooks.activities.aws import event_queue
from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.workers.intake import aws_events
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from testbed.ports import free_port
from testbed.temporal import Temporal


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def one_reading_of_the_service_model() -> Iterator[None]:
    """Each test has clients of its own, whose making is mostly the reading of what SQS is."""
    with pytest.MonkeyPatch.context() as patch:
        loader = create_loader()
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        yield


@pytest.fixture(autouse=True)
def environment(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": moto,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "intake",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    # Nobody waits for minutes in a test.
    monkeypatch.setattr(aws_events, "FIRST_DELAY", 1)
    monkeypatch.setattr(aws_events, "LONGEST_DELAY", 1)
    monkeypatch.setattr(aws_events, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(event_queue, "POLL_SECONDS", 1)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire, connect = Wire(), event_queue.connect

    def connect_and_look() -> Any:
        client = connect()
        wire.attach(client)
        return client

    monkeypatch.setattr(event_queue, "connect", connect_and_look)
    return wire


@pytest.fixture
def sqs(environment: None) -> Iterator[Any]:
    client = boto3.client("sqs")
    yield client
    client.close()


@pytest.fixture
def queue(sqs: Any, request: pytest.FixtureRequest) -> Queue:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)[:80]
    return Queue(sqs, sqs.create_queue(QueueName=name)["QueueUrl"])


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
async def intake(
    tmp_path: Path, temporal: Temporal, kubeconfig: Path, nodes: Nodes, queue: Queue, wire: Wire
) -> AsyncIterator[Intake]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    settings = Settings(cluster=CLUSTER, policy=policy, event_queue=queue.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        async with Kubernetes.connect() as kubernetes:
            reception = Reception(kubernetes, Incidents(temporal.client, CLUSTER), PolicyFile(settings))
            reception.fleet = nodes
            yield Intake(reception, settings, temporal.client)
    (statement,) = json.loads(IAM.read_text())["Statement"]
    called = {f"sqs:{operation}" for operation in wire.made}
    assert called <= set(statement["Action"]), "add it to the IAM policy, or do not call it"


@pytest.fixture
async def make_instance(
    make_node: MakeNode, admin: Kubernetes, nodes: Nodes
) -> Callable[[], Awaitable[tuple[str, str]]]:
    """Make a Node of an instance: name and instance id."""

    async def make() -> tuple[str, str]:
        name = await make_node()
        found = await admin.find(f"/api/v1/nodes/{name}")
        assert found is not None
        instance = identity_of(found).instance_id
        nodes.by_instance[instance] = name
        return name, instance

    return make


@pytest.fixture
def nobody_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance without a Node is at once none of ours."""
    monkeypatch.setattr(aws_events, "JOINING", aws_events.timedelta(0))
