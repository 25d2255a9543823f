"""What is kept, under which name, and what a reference says: on a folder, and without a sink."""

import asyncio
import hashlib
import json
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gpu_runbooks.activities.evidence.evidence import Evidence, canonical, key_of, sink_of
from gpu_runbooks.activities.evidence.sinks import DirectorySink, S3Sink
from gpu_runbooks.activities.model.drain import BlockerReason, PodBlocker

INCIDENT = {"incident": "node/prod/gpu-01", "run_id": "0199-run"}
PODS = [{"name": "b", "uid": "2"}, {"uid": "1", "name": "ä"}]


def path_of(reference):
    return Path(unquote(urlsplit(reference.location).path))


async def test_a_list_lies_where_its_reference_says_and_has_its_digest(tmp_path):
    reference = await Evidence.at(f"file://{tmp_path}/evidence").keep("drain", PODS, **INCIDENT)
    data = path_of(reference).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert json.loads(data) == PODS
    assert (reference.digest, reference.size, reference.problem) == (f"sha256:{digest}", len(data), "")
    assert path_of(reference) == tmp_path / f"evidence/node/prod/gpu-01/0199-run/drain-{digest[:12]}.json"


async def test_the_same_content_is_the_same_evidence(tmp_path):
    evidence = Evidence.at(f"file://{tmp_path}")
    first = await evidence.keep("drain", PODS, **INCIDENT)
    again = await evidence.keep("drain", [dict(reversed(pod.items())) for pod in PODS], **INCIDENT)
    other = await evidence.keep("drain", PODS[:1], **INCIDENT)
    assert first == again
    assert first.location != other.location
    folder = tmp_path / "node" / "prod" / "gpu-01" / "0199-run"
    assert len(list(folder.iterdir())) == 2, "nothing half written is left"


async def test_others_cannot_read_it_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        reference = await Evidence.at(f"file://{tmp_path}/deep/er").keep("drain", PODS, **INCIDENT)
    finally:
        os.umask(before)
    file = path_of(reference)
    made = [file, *(folder for folder in file.parents if folder.is_relative_to(tmp_path / "deep"))]
    assert len(made) == 7
    assert [each for each in made if each.stat().st_mode & stat.S_IRWXO] == []


async def test_without_a_sink_the_digest_is_still_told(tmp_path):
    kept = await Evidence.at(f"file://{tmp_path}").keep("drain", PODS, **INCIDENT)
    reference = await Evidence.at("").keep("drain", PODS, **INCIDENT)
    assert (reference.digest, reference.size, reference.location) == (kept.digest, kept.size, "")
    assert reference.problem == "no evidence sink is set (GPU_RUNBOOKS_EVIDENCE)"


async def test_a_folder_that_cannot_be_written_is_a_problem_in_words(tmp_path):
    (tmp_path / "file").write_text("in the way")
    reference = await Evidence.at(f"file://{tmp_path}/file/evidence").keep("drain", PODS, **INCIDENT)
    assert reference.location == ""
    assert reference.digest.startswith("sha256:")
    assert f"file://{tmp_path}/file/evidence/node/prod/gpu-01/" in reference.problem
    assert "Not a directory" in reference.problem
    assert "volume" in reference.problem


async def test_a_sink_that_hangs_is_given_up():
    released = threading.Event()

    class Hanging:
        def place(self, key):
            return f"file:///mnt/{key}"

        def put(self, key, _):
            released.wait()
            return self.place(key)

    try:
        reference = await Evidence(Hanging(), keep_seconds=0.01).keep("drain", PODS, **INCIDENT)
    finally:
        released.set()
    assert reference.location == ""
    assert "file:///mnt/node/prod/gpu-01/" in reference.problem
    assert "within 0.01 s" in reference.problem


async def test_sinks_that_hang_hold_up_nobody_else():
    """A file system of the network can hang for ever, and each write to it then keeps its thread."""
    released = threading.Event()

    class Hanging:
        def place(self, key):
            return key

        def put(self, key, _):
            released.wait()
            return key

    evidence = Evidence(Hanging(), keep_seconds=0.01)
    try:
        await asyncio.gather(*(evidence.keep("drain", number, **INCIDENT) for number in range(64)))
        async with asyncio.timeout(10):
            await asyncio.to_thread(lambda: None)
    finally:
        released.set()


async def test_an_error_that_nobody_thought_of_is_a_problem_too():
    class Broken:
        def place(self, key):
            return key

        def put(self, *_):
            raise RuntimeError("a bug")

    reference = await Evidence(Broken()).keep("drain", PODS, **INCIDENT)
    assert reference.location == ""
    assert "RuntimeError('a bug')" in reference.problem


async def test_a_cancelled_activity_is_not_held_up(tmp_path):
    keeping = asyncio.create_task(Evidence.at(f"file://{tmp_path}").keep("drain", PODS, **INCIDENT))
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


def test_wire_types_are_kept_as_they_travel():
    blocker = PodBlocker(
        namespace="research",
        name="training-0",
        uid="u",
        reason=BlockerReason.BUDGET,
        message="m",
        attempts=1,
        since=datetime(2026, 3, 1, 8, tzinfo=UTC),
    )
    assert json.loads(canonical([blocker])) == [blocker.model_dump(mode="json")]


@pytest.mark.parametrize(
    ("incident", "folder"),
    [
        ("node/prod/gpu-01", "node/prod/gpu-01"),
        ("node/my cluster/ip-10-0-0-1.ec2.internal", "node/my%20cluster/ip-10-0-0-1.ec2.internal"),
        ("node/../../etc", "node/%2E%2E/%2E%2E/etc"),
        ("node/./.hidden", "node/%2E/.hidden"),
    ],
)
def test_names_stay_below_the_sink(incident, folder):
    assert key_of("drain", "0123456789abcdef", incident, "run") == f"{folder}/run/drain-0123456789ab.json"


@pytest.mark.parametrize(
    ("url", "kind", "place"),
    [
        ("file:///var/lib/gpu-runbooks", DirectorySink, "file:///var/lib/gpu-runbooks/k"),
        ("file://localhost/var/lib/a%20b/", DirectorySink, "file:///var/lib/a%20b/k"),
        ("s3://bucket", S3Sink, "s3://bucket/k"),
        ("s3://bucket/", S3Sink, "s3://bucket/k"),
        ("s3://my.bucket-1/gpu/evidence/", S3Sink, "s3://my.bucket-1/gpu/evidence/k"),
    ],
)
def test_sinks_by_url(url, kind, place):
    sink = sink_of(url)
    assert isinstance(sink, kind)
    assert sink.place("k") == place


@pytest.mark.parametrize(
    "url",
    [
        "/var/lib/evidence",
        "file://var/lib",
        "file:relative",
        "file:///var/../etc",
        "file:///var/%2E%2E/etc",
        "file:///var/lib?mode=1",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "s3://Bucket/prefix",
        "s3://user:secret@bucket/prefix",
        "s3://bucket/prefix#part",
        "s3://bucket/a/../b",
        "s3://[bucket",
        "https://bucket.s3.amazonaws.com/prefix",
        " s3://bucket",
    ],
)
def test_a_setting_that_is_no_place_is_refused(url):
    with pytest.raises(
        ValueError, match=r"GPU_RUNBOOKS_EVIDENCE=.*write file:///absolute/folder or s3://bucket"
    ):
        Evidence.at(url)
