"""The source `aws events` between SQS (moto), a real API server and a real Temporal server."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.loaders import create_loader
from intake.aws_messages import ACCOUNT, REGION, health, in_sns, interruption
from intake.conftest import CLUSTER, POLICY
from moto.server import ThreadedMotoServer
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.aws import event_queue
from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.names import incident_id
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.workers.intake import aws_events
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from testbed.ports import free_port
from testbed.temporal import Temporal

IAM = Path(__file__).parents[2] / "deploy" / "manifests" / "iam" / "intake.json"

STRANGER = "i-0fffffffffffffff0"
BROKEN = "i-0fffffffffffffff1"

MakeNode = Callable[..., Awaitable[str]]


@dataclass
class Nodes:
    """Nodes by instance, as the watch of the fleet knows them."""

    by_instance: dict[str, str] = field(default_factory=dict)
    known: bool = True
    asked: int = 0

    @property
    def ready(self) -> bool:
        self.asked += 1
        return self.known

    def node_of_instance(self, instance_id: str) -> str | None:
        if instance_id == BROKEN:
            raise RuntimeError("an error that nobody foresaw")
        return self.by_instance.get(instance_id)


@dataclass
class Queue:
    """A queue of SQS, as those see it who send to it."""

    sqs: Any
    url: str

    async def send(self, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        await asyncio.to_thread(self.sqs.send_message, QueueUrl=self.url, MessageBody=text)

    async def length(self) -> int:
        """Messages in it, hidden ones too."""
        shown = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        answer = await asyncio.to_thread(
            self.sqs.get_queue_attributes, QueueUrl=self.url, AttributeNames=list(shown)
        )
        return sum(int(answer["Attributes"][name]) for name in shown)

    async def empty(self) -> None:
        while await self.length():
            await asyncio.sleep(0.05)


@dataclass
class Wire:
    """Calls that the product's client makes, each counted by operation, and disturbed where a test says."""

    made: Counter[str] = field(default_factory=Counter)
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Codes of refusal by operation; each is used up by one call."""

    def attach(self, client: Any) -> None:
        client.meta.events.register("before-call.sqs", self._before)

    def _before(self, model: Any, **_: Any) -> None:
        self.made[model.name] += 1
        if codes := self.refused.get(model.name):
            raise ClientError({"Error": {"Code": codes.pop(0), "Message": "injected"}}, model.name)


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


@dataclass
class Intake:
    """The source over its reception, and what it left behind in Temporal."""

    reception: Reception
    settings: Settings
    temporal: Client

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        run = aws_events.run(self.reception, self.settings.model_copy(update=settings), stop)
        task = asyncio.create_task(run)
        try:
            yield task
        finally:
            stop.set()
            await task

    async def take_all(self, queue: Queue, **settings: Any) -> None:
        """Run until the queue is empty."""
        async with self.running(**settings):
            await queue.empty()

    async def incident(self, node: str) -> WorkflowExecutionDescription | None:
        try:
            return await self.temporal.get_workflow_handle(incident_id(CLUSTER, node)).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def fingerprints(self, node: str) -> list[str]:
        handle = self.temporal.get_workflow_handle(incident_id(CLUSTER, node), result_type=list)
        return await handle.query("fingerprints")

    async def begun(self, node: str) -> None:
        while await self.incident(node) is None:
            await asyncio.sleep(0.05)


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


MakeInstance = Callable[[], Awaitable[tuple[str, str]]]


@pytest.fixture
def nobody_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance without a Node is at once none of ours."""
    monkeypatch.setattr(aws_events, "JOINING", aws_events.timedelta(0))


@pytest.mark.usefixtures("controller")
class TestTaken:
    async def test_a_retirement_starts_the_incident_of_its_node_and_leaves_the_queue(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(instance))

        await intake.take_all(queue)

        incident = await intake.incident(node)
        assert incident is not None
        assert "aws instance-retirement" in (await incident.static_summary() or "")
        assert "not before 2026-03-15 06:00 UTC" in (await incident.static_details() or "")

    async def test_one_event_may_be_about_several_nodes_and_come_through_sns(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        made = [await make_instance() for _ in range(3)]
        await queue.send(in_sns(health(*(instance for _, instance in made))))

        await intake.take_all(queue)

        assert all([await intake.incident(node) for node, _ in made])

    async def test_repeats_join_nothing_and_another_deadline_does(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        node, instance = await make_instance()
        first, sooner = health(instance), health(instance, startTime="Mon, 2 Mar 2026 06:00:00 GMT")
        for event in (first, first, first | {"time": "2026-03-02T10:00:00Z"}, sooner, sooner):
            await queue.send(event)

        await intake.take_all(queue)

        assert len(await intake.fingerprints(node)) == 2

    @pytest.mark.usefixtures("nobody_joins")
    async def test_ours_is_found_among_thousands(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        node, instance = await make_instance()
        others = [f"i-{number:017x}" for number in range(10_000)]
        event = health(resources=[*others, instance])
        del event["detail"]["affectedEntities"]
        assert 200_000 < len(json.dumps(event)) < 262_144
        await queue.send(event)

        await intake.take_all(queue)

        assert await intake.incident(node)

    async def test_a_message_whose_deletion_failed_comes_again_and_is_known(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, wire: Wire, monkeypatch
    ) -> None:
        monkeypatch.setattr(event_queue, "HIDDEN_SECONDS", 1)
        node, instance = await make_instance()
        wire.refused["DeleteMessage"] = ["InternalFailure"]
        await queue.send(interruption(instance))

        await intake.take_all(queue)

        assert wire.made["DeleteMessage"] == 2
        assert len(await intake.fingerprints(node)) == 1


@pytest.mark.usefixtures("controller")
class TestKept:
    async def test_nothing_is_received_before_the_fleet_is_known(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, nodes: Nodes, wire: Wire
    ) -> None:
        node, instance = await make_instance()
        nodes.known = False
        await queue.send(health(instance))
        async with intake.running():
            while nodes.asked < 2:
                await asyncio.sleep(0.05)
            assert not wire.made
            nodes.known = True
            await queue.empty()
        assert await intake.incident(node)

    async def test_a_fault_that_is_not_in_temporal_stays_in_the_queue(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, wire: Wire
    ) -> None:
        node, instance = await make_instance()
        delivering = intake.reception._incidents
        away = await Client.connect(f"127.0.0.1:{free_port()}", lazy=True)
        intake.reception._incidents = Incidents(away, CLUSTER)
        await queue.send(health(instance))

        async with intake.running():
            while wire.made["ChangeMessageVisibility"] < 2:
                await asyncio.sleep(0.05)
            assert await queue.length() == 1
            assert await intake.incident(node) is None
            intake.reception._incidents = delivering
            await queue.empty()

        assert await intake.incident(node)

    async def test_an_instance_may_still_join(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, nodes: Nodes, wire: Wire, monkeypatch
    ) -> None:
        monkeypatch.setattr(aws_events, "JOINING", aws_events.timedelta(seconds=2))
        node, instance = await make_instance()
        del nodes.by_instance[instance]
        await queue.send(health(instance))

        async with intake.running():
            while not wire.made["ChangeMessageVisibility"]:
                await asyncio.sleep(0.02)
            nodes.by_instance[instance] = node
            await queue.empty()

        assert await intake.incident(node)

    async def test_one_message_with_an_error_holds_up_no_other(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, caplog
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(BROKEN))
        await queue.send(health(instance))

        async with intake.running() as task:
            await intake.begun(node)
            assert not task.done()
            while await queue.length() > 1:
                await asyncio.sleep(0.05)

        assert await queue.length() == 1
        assert "could not be dealt with" in caplog.text


@pytest.mark.usefixtures("controller", "nobody_joins")
class TestIgnored:
    async def test_the_instances_of_others_are_ignored_on_purpose(
        self, intake: Intake, queue: Queue, caplog
    ) -> None:
        caplog.set_level(logging.INFO)
        await queue.send(health(STRANGER, "vol-0123456789abcdef0"))
        await intake.take_all(queue)
        (line,) = [each.getMessage() for each in caplog.records if "'ignored'" in each.getMessage()]
        assert STRANGER in line
        assert "no Node of this cluster" in line

    async def test_a_node_that_is_another_machine_now_is_left_alone(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, nodes: Nodes
    ) -> None:
        node, _ = await make_instance()
        nodes.by_instance[STRANGER] = node
        await queue.send(health(STRANGER))
        await intake.take_all(queue)
        assert await intake.incident(node) is None

    @pytest.mark.parametrize(
        ("account", "fields"),
        [
            ("444455556666", {}),
            (ACCOUNT, {"eventRegion": "us-east-1"}),
            ("", {"eventRegion": "us-west-20"}),
            (ACCOUNT, {"statusCode": "closed"}),
        ],
    )
    async def test_another_account_or_region_and_what_is_over(
        self,
        intake: Intake,
        queue: Queue,
        make_instance: MakeInstance,
        account: str,
        fields: dict[str, str],
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(instance, **fields))
        await intake.take_all(queue, event_account=account)
        assert await intake.incident(node) is None


class TestUnreadable:
    async def test_it_is_left_to_the_redrive_policy_of_the_queue(
        self, intake: Intake, queue: Queue, sqs: Any, caplog
    ) -> None:
        caplog.set_level(logging.INFO)
        dead = Queue(sqs, sqs.create_queue(QueueName="dead")["QueueUrl"])
        arn = sqs.get_queue_attributes(QueueUrl=dead.url, AttributeNames=["QueueArn"])["Attributes"]
        policy = json.dumps({"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": "2"})
        sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"RedrivePolicy": policy})
        await queue.send("AQICAHhTHE-SECRET")

        async with intake.running():
            while not await dead.length():
                await asyncio.sleep(0.05)

        refused = [each.getMessage() for each in caplog.records if "'refused'" in each.getMessage()]
        assert "no JSON" in refused[0]
        assert "sha256:" in refused[0]
        assert "THE-SECRET" not in caplog.text

    async def test_without_one_it_is_deleted_in_the_end(
        self, intake: Intake, queue: Queue, wire: Wire, monkeypatch
    ) -> None:
        monkeypatch.setattr(aws_events, "LAST_RECEIPT", 2)
        await queue.send({"source": "aws.health"})
        async with intake.running():
            while not wire.made["DeleteMessage"] or await queue.length():
                await asyncio.sleep(0.02)
        assert wire.made["ChangeMessageVisibility"] == 1
        (statement,) = json.loads(IAM.read_text())["Statement"]
        assert {f"sqs:{operation}" for operation in wire.made} == set(statement["Action"])


class TestQueue:
    async def test_without_a_queue_there_is_no_source(self, intake: Intake, wire: Wire) -> None:
        async with intake.running(event_queue="") as task:
            await task
        assert not wire.made

    async def test_a_queue_that_is_missing_is_asked_again(
        self, intake: Intake, queue: Queue, sqs: Any, wire: Wire, caplog
    ) -> None:
        await asyncio.to_thread(sqs.delete_queue, QueueUrl=queue.url)
        async with intake.running() as task:
            while wire.made["ReceiveMessage"] < 2:
                await asyncio.sleep(0.02)
            assert not task.done()
        assert "Compare GPU_RUNBOOKS_EVENT_QUEUE" in caplog.text

    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            ("AccessDenied", "iam/intake.json"),
            ("KmsAccessDenied", "kms:Decrypt"),
            ("RequestThrottled", "too busy"),
            ("InternalFailure", "Can the intake reach SQS"),
        ],
    )
    async def test_a_refusal_says_what_to_do(
        self, intake: Intake, wire: Wire, caplog, code: str, advice: str
    ) -> None:
        wire.refused["ReceiveMessage"] = [code]
        async with intake.running():
            while wire.made["ReceiveMessage"] < 2:
                await asyncio.sleep(0.02)
        assert advice in caplog.text

    async def test_without_credentials_the_log_says_so(self, intake: Intake, monkeypatch, caplog) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        async with intake.running():
            while "iam/intake.json" not in caplog.text:
                await asyncio.sleep(0.02)

    async def test_without_a_region_the_log_says_so(self, intake: Intake, monkeypatch, caplog) -> None:
        monkeypatch.delenv("AWS_REGION")
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        async with intake.running():
            while "Set AWS_REGION" not in caplog.text:
                await asyncio.sleep(0.02)

    async def test_an_empty_region_is_none(self, intake: Intake, monkeypatch, caplog) -> None:
        monkeypatch.delenv("AWS_REGION")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "")
        async with intake.running() as task:
            while "Set AWS_REGION" not in caplog.text:
                assert not task.done()
                await asyncio.sleep(0.02)

    @pytest.mark.usefixtures("controller")
    async def test_what_no_client_can_be_made_of_ends_no_source_and_may_be_mended(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, moto: str, monkeypatch, caplog
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(instance))
        monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
        async with intake.running() as task:
            while "Compare AWS_ENDPOINT_URL" not in caplog.text:
                assert not task.done()
                await asyncio.sleep(0.02)
            monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
            await queue.empty()
        assert await intake.incident(node)

    async def test_a_long_poll_holds_up_no_end(self, intake: Intake, wire: Wire, monkeypatch) -> None:
        """The poll waits for ten seconds, and the end for nothing."""
        monkeypatch.setattr(event_queue, "POLL_SECONDS", 10)
        async with asyncio.timeout(8), intake.running():
            while not wire.made["ReceiveMessage"]:
                await asyncio.sleep(0.02)
