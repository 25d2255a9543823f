"""The bucket: real boto3 against moto's S3 and IAM, which enforces the IAM policy that we ship."""

import base64
import hashlib
import json
from pathlib import Path
from urllib.request import Request, urlopen

import boto3
import pytest
from moto.server import ThreadedMotoServer

from gpu_runbooks.activities.evidence.evidence import Evidence, canonical, sink_of
from testbed.ports import free_port

POLICY = Path(__file__).parents[2] / "deploy" / "manifests" / "iam" / "evidence-writer.json"
BUCKET, PREFIX = "gpu-evidence", "runbooks/prod"
INCIDENT = {"incident": "node/prod/gpu-01", "run_id": "0199-run"}
PODS = [{"name": f"worker-{number}", "uid": str(number)} for number in range(110)]


@pytest.fixture(scope="module")
def moto():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def credentials(monkeypatch, moto):
    """Sets whom boto3 takes us for."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("AWS_PROFILE", raising=False)

    def become(key="admin", secret="secret"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)

    become()
    return become


@pytest.fixture
def bucket(moto, credentials):
    """The administrator's client, with an empty bucket."""
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield s3
    s3.close()
    urlopen(Request(f"{moto}/moto-api/reset", method="POST")).close()


@pytest.fixture
def sink():
    """Makes evidence at a URL, and closes its connections in the end."""
    made = []

    def at(url):
        made.append(Evidence.at(url))
        return made[-1]

    yield at
    for evidence in made:
        evidence._sink.client.close()


@pytest.fixture
def as_writer(moto, bucket, credentials):
    """We are a user with the policy that we ship, and IAM is enforced."""
    policy = POLICY.read_text().replace("BUCKET", BUCKET).replace("PREFIX", PREFIX)
    iam = boto3.client("iam")
    iam.create_user(UserName="cluster-worker")
    iam.put_user_policy(UserName="cluster-worker", PolicyName="evidence", PolicyDocument=policy)
    key = iam.create_access_key(UserName="cluster-worker")["AccessKey"]
    iam.close()
    enforce(moto, "0")
    credentials(key["AccessKeyId"], key["SecretAccessKey"])
    yield
    credentials()
    enforce(moto, "inf")


def enforce(moto, free_calls):
    """After so many calls each one needs a permission. The setting is one for all of moto in this process."""
    plain = {"Content-Type": "text/plain"}
    urlopen(Request(f"{moto}/moto-api/reset-auth", data=free_calls.encode(), headers=plain)).close()


async def test_a_list_lies_where_its_reference_says_and_has_its_digest(bucket, sink):
    reference = await sink(f"s3://{BUCKET}/{PREFIX}").keep("drain", PODS, **INCIDENT)
    digest = hashlib.sha256(canonical(PODS))
    key = f"{PREFIX}/node/prod/gpu-01/0199-run/drain-{digest.hexdigest()[:12]}.json"
    assert reference.problem == ""
    assert reference.location == f"s3://{BUCKET}/{key}"
    found = bucket.get_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")
    data = found["Body"].read()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == reference.digest
    assert (len(data), json.loads(data)) == (reference.size, PODS)
    assert found["ChecksumSHA256"] == base64.b64encode(digest.digest()).decode()
    assert found["ContentType"] == "application/json"


async def test_a_bundle_of_the_largest_size_arrives_whole(bucket, sink):
    bundle = {"agent": {"kernel_log": {"text": '"\n' * 130_000 + "\x1b", "note": ""}}}
    reference = await sink(f"s3://{BUCKET}/{PREFIX}").keep("evidence-before-1", bundle, **INCIDENT)
    assert reference.problem == ""
    assert reference.size > 500_000
    key = reference.location.removeprefix(f"s3://{BUCKET}/")
    data = bucket.get_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")["Body"].read()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == reference.digest
    assert json.loads(data) == bundle


async def test_kept_twice_it_is_one_object(bucket, sink):
    evidence = sink(f"s3://{BUCKET}")
    references = [await evidence.keep("drain", PODS, **INCIDENT) for _ in range(2)]
    assert references[0] == references[1]
    assert bucket.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1


async def test_the_policy_that_ships_suffices_for_its_prefix_and_no_more(as_writer, sink):
    assert (await sink(f"s3://{BUCKET}/{PREFIX}").keep("drain", PODS, **INCIDENT)).problem == ""
    denied = await sink(f"s3://{BUCKET}/other").keep("drain", PODS, **INCIDENT)
    assert denied.location == ""
    assert denied.digest.startswith("sha256:")
    assert "AccessDenied" in denied.problem
    assert f"s3:PutObject on s3://{BUCKET}/other/*" in denied.problem
    assert "cluster-worker's IAM role" in denied.problem


async def test_a_bucket_that_is_not_there(bucket, sink):
    reference = await sink("s3://elsewhere/prefix").keep("drain", PODS, **INCIDENT)
    assert reference.location == ""
    assert "NoSuchBucket" in reference.problem
    assert "mend GPU_RUNBOOKS_EVIDENCE" in reference.problem


async def test_no_credentials(bucket, sink, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    reference = await sink(f"s3://{BUCKET}").keep("drain", PODS, **INCIDENT)
    assert reference.location == ""
    assert "Unable to locate credentials" in reference.problem
    assert "evidence-writer.json" in reference.problem


def test_the_region_may_be_in_either_variable(credentials, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    client = sink_of(f"s3://{BUCKET}").client
    assert client.meta.region_name == "eu-north-1"
    client.close()


async def test_no_s3_is_given_up_after_a_few_attempts(bucket, sink, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    evidence = sink(f"s3://{BUCKET}")
    sent = []
    evidence._sink.client.meta.events.register("before-send.s3.PutObject", lambda **_: sent.append(1))
    reference = await evidence.keep("drain", PODS, **INCIDENT)
    assert reference.location == ""
    assert "Could not connect to the endpoint" in reference.problem
    assert "AWS_REGION" in reference.problem
    assert len(sent) == 3
