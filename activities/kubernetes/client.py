"""The Kubernetes API: raw JSON over the official asyncio client, with a timeout on every call.

Raw JSON because a typed object refuses what a newer server sends, and costs more. Two verbs cover all that
we do: `request` for one call, and `follow` to wait for a state of the world without polling it.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
from kubernetes.aio import client

from gpu_runbooks.activities.kubernetes.connection import ApiConnection, limits
from gpu_runbooks.activities.kubernetes.credentials import Credentials, of_environment, of_kubeconfig
from gpu_runbooks.activities.kubernetes.error import KubernetesError, Object, decoded
from gpu_runbooks.activities.kubernetes.listing import Listing, applied, by_uid, oddity, page_of

__all__ = ["MERGE_PATCH", "REFUSALS", "Kubernetes", "KubernetesError", "Listing", "Object"]

MERGE_PATCH = "application/merge-patch+json"

CALL_TIMEOUT = 15.0
"""Seconds for one call, its repetition after a 401 included; the API server's own limit is 60."""

LIST_TIMEOUT = 30.0
"""Seconds for all pages of a list."""

WATCH_SECONDS = 25
"""The server ends a watch after so long; the next list is then the safety net against lost events."""

WATCH_TIMEOUT = 30.0
"""Seconds after which the client ends a watch that the server did not: it is silent, drips or hangs."""

LIST_INTERVAL = 2.5
"""Seconds at least between two lists of one `follow`: so less than a request a second, watch included."""

LONGEST_PAUSE = 15.0
"""Seconds to which the interval grows, twofold each time, while the server throttles or fails."""

JITTER = 0.2
"""Share of the pause by which it is longer at random, so that many do not come back at once."""

REFUSALS = frozenset({400, 401, 403, 404, 405, 406, 415, 422})
"""Answers to a list or watch that will not change by asking again."""

MOST_ODDITIES = 1000
"""Odd objects that are remembered, to log each once."""

logger = logging.getLogger(__name__)


class Kubernetes:
    """A connection to one API server with one identity. Safe to share between tasks."""

    def __init__(self, configuration: client.Configuration, credentials: Credentials | None = None) -> None:
        self._connection = ApiConnection(configuration, credentials or Credentials(configuration))
        self._logged: set[tuple[str, str]] = set()

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: str | None = None) -> AsyncIterator["Kubernetes"]:
        """Connect as the kubeconfig says, or the environment: `KUBECONFIG`, else the Pod's service account.

        Raises `kubernetes.aio.config.ConfigException` when there is none of them.
        """
        read, source, longest_use = of_kubeconfig(kubeconfig) if kubeconfig else of_environment()
        configuration = await read()
        kubernetes = cls(
            configuration, Credentials(configuration, read, source=source, longest_use=longest_use)
        )
        try:
            yield kubernetes
        finally:
            await kubernetes.close()

    async def close(self) -> None:
        await self._connection.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call, for example `request("GET", "/api/v1/nodes/n1")`.

        Raises `KubernetesError` for any answer but 2xx, and with status 0 where there was no answer: then
        nobody knows whether the call took effect. A read whose answer is neither object nor list has status 0
        too; a write is judged by its status alone, since some answer with an empty body.
        """
        call = f"{method} {path}"
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                response = await self._connection.send(
                    method,
                    path,
                    query=query,
                    body=body,
                    content_type=content_type,
                    timeout=limits(CALL_TIMEOUT),
                )
                async with response:
                    content = await response.read()
        except TimeoutError as error:
            raise KubernetesError(0, "Unreachable", f"{call}: no answer in {CALL_TIMEOUT:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise KubernetesError(0, "Unreachable", f"{call}: {str(error) or repr(error)}") from error
        if response.status >= 300:
            raise self._connection.error(response, content, call)
        answer = decoded(content)
        if method == "GET" and not str(answer.get("kind")).endswith("List") and (odd := oddity(answer)):
            raise KubernetesError(0, "Unreadable", f"{call}: the answer is {odd}")
        return answer

    async def find(self, path: str) -> Object | None:
        """One object, or None where the API server itself says that there is none.

        Raises `KubernetesError` for all else, such as the 404 of a proxy in between.
        """
        try:
            return await self.request("GET", path)
        except KubernetesError as error:
            if error.status == 404 and error.reason == "NotFound":
                return None
            raise

    async def items(self, path: str, *, label_selector: str = "", field_selector: str = "") -> list[Object]:
        """The readable objects of a collection. Where no object must mean none, ask `list_objects`."""
        listing = await self.list_objects(path, label_selector=label_selector, field_selector=field_selector)
        return listing.items

    async def list_objects(self, path: str, *, label_selector: str = "", field_selector: str = "") -> Listing:
        """List a collection, all pages in one, as of now (no cache of the server is asked).

        Objects that cannot be read are counted, and logged once each. Raises `KubernetesError` also when the
        answer is no list: that is unknown, not empty.
        """
        selectors = _selectors(label_selector, field_selector)
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                return await self._all_pages(path, selectors)
        except TimeoutError as error:
            raise KubernetesError(
                0, "Unreachable", f"GET {path}: not all pages in {LIST_TIMEOUT:g} s"
            ) from error

    async def _all_pages(self, path: str, selectors: Mapping[str, str]) -> Listing:
        items: list[Object] = []
        version, token, unreadable, again = "", "", 0, True
        while True:
            query = {**selectors, "continue": token} if token else selectors
            try:
                page = page_of(await self.request("GET", path, query=query))
            except KubernetesError as error:
                if error.status == 410 and token and again:  # the snapshot is too old: from the beginning
                    items, version, token, unreadable, again = [], "", "", 0, False
                    continue
                raise
            if page is None or (token and page.rest == token):
                raise KubernetesError(0, "Unreadable", f"GET {path}: the answer is no list")
            self._log_once(path, page.oddities)
            items += page.items
            unreadable += len(page.oddities)
            version, token = version or page.version, page.rest
            if not token:
                return Listing(version, items, unreadable)

    async def follow(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[dict[str, Object]]:
        """Yield the collection by UID: once after the list, then after each change, for as long as asked.

        A watch that ends, breaks, falls silent or is too old (410) leads to a new list, so an event can be
        late but not lost. The mapping is live: read it before asking for the next, and close the generator
        (`contextlib.aclosing`) when done, or its connection stays open. An object that cannot be read is
        left out, as in `items`.

        Raises `KubernetesError` when list or watch are refused (`REFUSALS`); an unreachable or busy server is
        tried again for ever, ever more slowly: the caller owns the deadline.
        """
        selectors = _selectors(label_selector, field_selector)
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            started, asked = clock(), 0.0
            try:
                listing = await self.list_objects(
                    path, label_selector=label_selector, field_selector=field_selector
                )
                objects = by_uid(listing.items)
                yield objects
                query = {**selectors, "resourceVersion": listing.version}
                async with aclosing(self._watch(path, query)) as events:
                    async for event in events:
                        if not applied(event, objects):
                            break
                        yield objects
                failures = 0
            except KubernetesError as error:
                if error.status in REFUSALS:
                    raise
                failures += 1
                asked = error.retry_after or 0.0
                logger.info("%s is asked again later: %s", path, error)
            pause = _interval(failures)
            await asyncio.sleep(
                max(pause - (clock() - started), asked) + random.uniform(0, JITTER * pause)  # noqa: S311
            )

    async def _watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Object]:
        """Events of one watch. However it ends, a new list is next; one that does not begin is an error."""
        watching = {**query, "watch": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        clock = asyncio.get_running_loop().time
        end = clock() + WATCH_TIMEOUT
        try:
            response = await self._connection.send("GET", path, query=watching, timeout=limits(WATCH_TIMEOUT))
        except (aiohttp.ClientError, OSError) as error:
            raise KubernetesError(0, "Unreachable", f"WATCH {path}: {str(error) or repr(error)}") from error
        try:
            async with response:
                if response.status not in {200, 410}:
                    raise self._connection.error(response, await response.read(), f"WATCH {path}")
                if response.status == 200:
                    async for line in response.content:
                        yield decoded(line)
                        if clock() >= end:  # the timeout is seen only by a reader that has to wait
                            return
        except (aiohttp.ClientError, OSError, ValueError):  # ValueError: a line beyond the read buffer
            return

    def _log_once(self, path: str, oddities: list[str]) -> None:
        for odd in oddities:
            if (path, odd) not in self._logged and len(self._logged) < MOST_ODDITIES:
                self._logged.add((path, odd))
                logger.warning("GET %s: %s is left out", path, odd)


def _interval(failures: int) -> float:
    """Seconds from one list to the next after so many failures in a row."""
    return min(LIST_INTERVAL * 2.0 ** max(0, min(failures, 10) - 1), max(LONGEST_PAUSE, LIST_INTERVAL))


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in selectors.items() if value}
