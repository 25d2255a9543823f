"""Where evidence can lie: a folder, or a bucket of S3. Both block; `evidence.py` calls them in a thread."""

import os
import tempfile
from pathlib import Path
from typing import Protocol

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from gpu_runbooks.activities.aws.region import region_of

CONNECT_SECONDS = 3
READ_SECONDS = 10
ATTEMPTS = 3
"""Of one object, with growing pauses: less than 45 s in all."""

NOT_PERMITTED = frozenset(
    {"AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)


class SinkError(Exception):
    """The sink did not take the content. The message is for a person: what, where, why, what to do."""


class Sink(Protocol):
    def place(self, key: str) -> str:
        """URL of a key, whether or not something lies there."""

    def put(self, key: str, content: bytes) -> str:
        """Store content under its key and return its URL. Raises `SinkError`."""


class DirectorySink:
    """A folder, its own or one of a mounted volume. Others on the machine cannot read what is in it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def place(self, key: str) -> str:
        return (self._folder / key).as_uri()

    def put(self, key: str, content: bytes) -> str:
        file = self._folder / key
        try:
            _make_folders(file.parent)
            _write(file, content)
        except OSError as error:
            raise SinkError(
                f"{self.place(key)} cannot be written: {error.strerror or error}. The folder must be on a "
                f"volume that user {os.getuid()} of the cluster-worker may write to and that has room"
            ) from error
        return self.place(key)


def _make_folders(folder: Path) -> None:
    """Make missing folders, all of them closed to others: `mkdir(parents=True)` would open the parents."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o750, exist_ok=True)


def _write(file: Path, content: bytes) -> None:
    """Write in one step: whoever reads the name sees all of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as fresh:
        try:
            fresh.write(content)
            fresh.flush()
            os.fchmod(fresh.fileno(), 0o640)
            os.fsync(fresh.fileno())
            Path(fresh.name).replace(file)
        except BaseException:
            Path(fresh.name).unlink(missing_ok=True)
            raise


class S3Sink:
    """A prefix of a bucket. Endpoint and credentials are the environment's, as for any boto3 program, and the
    region is as `aws/region.py` reads it.

    Encryption and retention are the bucket's own.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        session = botocore.session.Session()
        self.client = boto3.Session(botocore_session=session, region_name=region_of(session)).client(
            "s3",
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                user_agent_extra="gpu-runbooks",
            ),
        )

    def place(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def put(self, key: str, content: bytes) -> str:
        try:
            self.client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=content,
                ContentType="application/json",
                ChecksumAlgorithm="SHA256",  # S3 refuses what arrives otherwise, and shows it on request
            )
        except (ClientError, BotoCoreError) as error:
            raise SinkError(f"{self.place(key)} was not stored: {error}. {self._advice(error)}") from error
        return self.place(key)

    def _advice(self, error: ClientError | BotoCoreError) -> str:
        code = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else None
        if isinstance(error, NoCredentialsError):
            return "Give the ServiceAccount cluster-worker an IAM role with iam/evidence-writer.json"
        if code in NOT_PERMITTED:
            return (
                f"Permit s3:PutObject on {self.place('*')} to the cluster-worker's IAM role "
                "(iam/evidence-writer.json), and the bucket's KMS key if it has one"
            )
        if code == "NoSuchBucket":
            return "Create the bucket, or mend GPU_RUNBOOKS_EVIDENCE"
        return "Can the cluster-worker reach S3, in the bucket's region (AWS_REGION)?"
