"""The evidence sink: lists that are too long for the history, found again by their digest.

A drain must not fail because its list could not be kept, so nothing here raises after the start: what went
wrong stands in the reference, in words, beside the digest of what would have been kept.
"""

import asyncio
import hashlib
import json
import logging
import re
from concurrent.futures import Future
from threading import Thread
from typing import Any
from urllib.parse import quote, unquote

from pydantic_core import to_jsonable_python

from gpu_runbooks.activities.evidence.sinks import DirectorySink, S3Sink, Sink, SinkError
from gpu_runbooks.activities.model.drain import EvidenceReference

SETTING = "GPU_RUNBOOKS_EVIDENCE"

KEEP_SECONDS = 60.0
"""Longest wait for a sink. A file system of the network can hang for ever."""

LONGEST_PROBLEM = 500

BUCKET = re.compile(r"s3://(?P<name>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#\s]*))?")
FOLDER = re.compile(r"file://(?:localhost)?(?P<path>/[^?#\s]*)")

logger = logging.getLogger(__name__)


class Evidence:
    """Keeps what belongs to an incident. Without a sink it only makes digests."""

    def __init__(self, sink: Sink | None = None, *, keep_seconds: float = KEEP_SECONDS) -> None:
        self._sink = sink
        self._keep_seconds = keep_seconds

    @classmethod
    def at(cls, url: str) -> "Evidence":
        """Keep evidence at a URL of the setting; nothing is opened yet. Raises `ValueError` for a bad one."""
        return cls(sink_of(url))

    async def keep(self, name: str, content: Any, *, incident: str, run_id: str) -> EvidenceReference:
        """Keep content, which is JSON or wire types, under the incident's workflow id and first run id.

        The same content has the same name, so keeping it twice changes nothing. Never raises, but for
        content that is no JSON and when it is cancelled.
        """
        data = canonical(content)
        digest = hashlib.sha256(data).hexdigest()
        location, problem = "", f"no evidence sink is set ({SETTING})"
        if self._sink is not None:
            location, problem = await self._put(self._sink, key_of(name, digest, incident, run_id), data)
        return EvidenceReference(
            digest=f"sha256:{digest}", location=location, size=len(data), problem=problem[:LONGEST_PROBLEM]
        )

    async def _put(self, sink: Sink, key: str, data: bytes) -> tuple[str, str]:
        """Location, or the problem."""
        try:
            async with asyncio.timeout(self._keep_seconds):
                return await _in_own_thread(sink, key, data), ""
        except TimeoutError:
            problem = f"{sink.place(key)} took no evidence within {self._keep_seconds:g} s; see {SETTING}"
        except SinkError as error:
            problem = str(error)
        except Exception as error:
            logger.exception("evidence for %s", sink.place(key))
            problem = f"{sink.place(key)} took no evidence: {error!r}"
        logger.warning("the evidence is not kept: %s", problem)
        return "", problem


async def _in_own_thread(sink: Sink, key: str, data: bytes) -> str:
    """Location. A sink that hangs keeps its thread, so it gets none of those that others wait for."""
    promise: Future[str] = Future()
    # Marked as running: giving up must not cancel it under the thread that will fill it in.
    promise.set_running_or_notify_cancel()

    def put() -> None:
        try:
            promise.set_result(sink.put(key, data))
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer
            promise.set_exception(error)

    Thread(target=put, name="evidence", daemon=True).start()
    return await asyncio.wrap_future(promise)


def canonical(content: Any) -> bytes:
    """The same bytes for the same content: keys in order, no spaces, ASCII."""
    return json.dumps(to_jsonable_python(content), sort_keys=True, separators=(",", ":")).encode()


def key_of(name: str, digest: str, incident: str, run_id: str) -> str:
    """Path below the sink: a person finds the incident, and the content its name."""
    parts = [*incident.split("/"), run_id, f"{name}-{digest[:12]}.json"]
    return "/".join(map(_file_name, parts))


def _file_name(text: str) -> str:
    """Text as one name of a path; names such as `..` lead nowhere else."""
    quoted = quote(text, safe="@:+=,")
    return quoted.replace(".", "%2E") if set(quoted) <= {"."} else quoted


def sink_of(url: str) -> Sink | None:
    """Sink of a URL; None for an empty one. Raises `ValueError` that says how to write it."""
    if not url:
        return None
    if ".." not in unquote(url).split("/"):
        if bucket := BUCKET.fullmatch(url):
            return S3Sink(bucket["name"], (bucket["prefix"] or "").strip("/"))
        if folder := FOLDER.fullmatch(url):
            return DirectorySink(unquote(folder["path"]))
    raise ValueError(
        f"{SETTING}={url} is no place for evidence: write file:///absolute/folder or s3://bucket/prefix, "
        "without .., ? and #, or leave it empty to keep none"
    )
