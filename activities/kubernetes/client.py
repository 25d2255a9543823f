"""The Kubernetes API: raw JSON over the official asyncio client, with a timeout on every call.

Raw JSON because a typed object refuses what a newer server sends, and costs more. Two verbs cover all that
we do: `request` for one call, and `follow` to wait for a state of the world without polling it.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, overload

import aiohttp
from kubernetes.aio import client

from gpu_runbooks.activities.kubernetes.connection import ApiConnection, limits
from gpu_runbooks.activities.kubernetes.credentials import Credentials, of_environment, of_kubeconfig
from gpu_runbooks.activities.kubernetes.error import KubernetesError, Object, decoded
from gpu_runbooks.activities.kubernetes.lines import lines_of
from gpu_runbooks.activities.kubernetes.listing import Followed, Kept, Listing, Page, oddity, page_of

__all__ = ["MERGE_PATCH", "REFUSALS", "Kubernetes", "KubernetesError", "Listing", "Object"]

MERGE_PATCH = "application/merge-patch+json"

CALL_TIMEOUT = 15.0
"""Seconds for one call, its repetition after a 401 included; the API server's own limit is 60."""

LIST_TIMEOUT = 30.0
"""Seconds for all of a list whose pages the server cuts."""

PAGED_LIST_TIMEOUT = 240.0
"""Seconds for a list that is asked for page by page. The server forgets its snapshot after 5 minutes."""

LIST_SHARE = 0.2
"""Share of the time that lists may take where one follows the other: those of thousands take seconds."""

WATCH_SECONDS = 25
"""The server ends a watch after so long. Two seconds before, it says where to go on (a bookmark), if anything
of the kind has changed at all."""

SILENCE = 60.0
"""Seconds without a word of the server after which a watch does not go on: the list tells what it missed."""

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

PASSING = frozenset({0, 429, 502, 503, 504})
"""Answers to a watch that say nothing of its version: unreachable, busy, or a load balancer's."""

logger = logging.getLogger(__name__)


def _whole(item: Object) -> Object:
    return item


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

    async def list_objects(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[Object]:
        """List a collection, all pages in one, as of now (no cache of the server is asked).

        Objects that cannot be read are counted, and logged once each. Raises `KubernetesError` also when the
        answer is no list: that is unknown, not empty.
        """
        selectors = _selectors(label_selector, field_selector)
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                return await self._all_pages(path, selectors, _whole)
        except TimeoutError as error:
            raise KubernetesError(
                0, "Unreachable", f"GET {path}: not all pages in {LIST_TIMEOUT:g} s"
            ) from error

    async def scan(
        self, path: str, keep: Callable[[Object], Kept], *, label_selector: str = "", page_size: int
    ) -> Listing[Kept]:
        """List a collection of thousands as of now, and keep of each object what `keep` makes of it.

        At most `page_size` whole objects are in memory at a time. Raises as `list_objects`.
        """
        query = {**_selectors(label_selector, ""), "limit": str(page_size)}
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                return await self._all_pages(path, query, keep)
        except TimeoutError as error:
            raise KubernetesError(
                0, "Unreachable", f"GET {path}: not all pages in {LIST_TIMEOUT:g} s"
            ) from error

    async def _all_pages(
        self, path: str, selectors: Mapping[str, str], keep: Callable[[Object], Kept]
    ) -> Listing[Kept]:
        kept: list[Kept] = []
        version, token, unreadable, again = "", "", 0, True
        while True:
            query = {**selectors, "continue": token} if token else selectors
            try:
                page = await self._page(path, query, keep)
            except KubernetesError as error:
                if error.status == 410 and token and again:  # the snapshot is too old: from the beginning
                    kept, version, token, unreadable, again = [], "", "", 0, False
                    continue
                raise
            if token and page.rest == token:
                raise KubernetesError(0, "Unreadable", f"GET {path}: the answer is no list")
            kept += page.items
            unreadable += len(page.oddities)
            version, token = version or page.version, page.rest
            if not token:
                return Listing(version, kept, unreadable)

    async def _page(self, path: str, query: Mapping[str, str], keep: Callable[[Object], Kept]) -> Page[Kept]:
        """One answer to a list, of which no whole object outlives this call."""
        page = page_of(await self.request("GET", path, query=query), keep)
        if page is None:
            raise KubernetesError(0, "Unreadable", f"GET {path}: the answer is no list")
        self._log_once(path, page.oddities)
        return page

    @overload
    def follow(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[Followed[Object], None]: ...

    @overload
    def follow(
        self,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        keep: Callable[[Object], Kept],
        page_size: int = 0,
        list_every: float = 0.0,
    ) -> AsyncGenerator[Followed[Kept], None]: ...

    async def follow(
        self,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        keep: Callable[[Object], Any] = _whole,
        page_size: int = 0,
        list_every: float = 0.0,
    ) -> AsyncGenerator[Followed[Any], None]:
        """Yield the collection by UID: once after the list, then after each event, for as long as asked.

        A watch that ends, breaks, falls silent or is too old (410) leads to a new list, so an event can be
        late but not lost. The mapping is live: read it before asking for the next, and close the generator
        (`contextlib.aclosing`) when done, or its connection stays open. An object that cannot be read is
        left out, as in `items`.

        For a collection of thousands: `keep` makes of each object what is kept of it (it must not raise);
        `page_size` is how many whole ones are in memory at a time; and for `list_every` seconds a watch goes
        on where the last one ended, as long as the server was heard of within `SILENCE` and nothing was odd.

        Raises `KubernetesError` when list or watch are refused (`REFUSALS`); an unreachable or busy server is
        tried again for ever, ever more slowly: the caller owns the deadline.
        """
        selectors = _selectors(label_selector, field_selector)
        clock = asyncio.get_running_loop().time
        failures, listed, heard, took = 0, 0.0, 0.0, 0.0
        state: Followed[Any] | None = None
        while True:
            started, asked = clock(), 0.0
            try:
                if state is None:
                    state = await self._listed(path, selectors, keep, page_size)
                    listed = heard = clock()
                    took = listed - started
                    yield state
                going_on = True
                query = {**selectors, "resourceVersion": state.version}
                async with aclosing(self._watch(path, query)) as events:
                    async for event in events:
                        if not (going_on := state.apply(event, keep)):
                            break
                        heard = clock()
                        yield state
                failures = 0
            except KubernetesError as error:
                if error.status in REFUSALS:
                    raise
                going_on = error.status in PASSING
                failures += 1
                asked = error.retry_after or 0.0
                logger.info("%s is asked again later: %s", path, error)
            pause = _interval(failures)
            if not going_on or clock() - listed >= list_every or clock() - heard >= SILENCE:
                state = None
                pause = max(pause, min(took / LIST_SHARE, SILENCE))
            await asyncio.sleep(
                max(pause - (clock() - started), asked) + random.uniform(0, JITTER * pause)  # noqa: S311
            )

    async def _listed(
        self, path: str, selectors: Mapping[str, str], keep: Callable[[Object], Kept], page_size: int
    ) -> Followed[Kept]:
        query = {**selectors, "limit": str(page_size)} if page_size else selectors
        seconds = PAGED_LIST_TIMEOUT if page_size else LIST_TIMEOUT
        try:
            async with asyncio.timeout(seconds):
                pages = await self._all_pages(path, query, lambda item: (item["metadata"]["uid"], keep(item)))
        except TimeoutError as error:
            raise KubernetesError(0, "Unreachable", f"GET {path}: not all pages in {seconds:g} s") from error
        return Followed(pages)

    async def _watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Object, None]:
        """Events of one watch, however it ends; one that does not begin is an error."""
        watching = {
            **query,
            "watch": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "allowWatchBookmarks": "true",
        }
        clock = asyncio.get_running_loop().time
        end = clock() + WATCH_TIMEOUT
        try:
            response = await self._connection.send("GET", path, query=watching, timeout=limits(WATCH_TIMEOUT))
        except (aiohttp.ClientError, OSError) as error:
            raise KubernetesError(0, "Unreachable", f"WATCH {path}: {str(error) or repr(error)}") from error
        try:
            async with response:
                if response.status != 200:
                    raise self._connection.error(response, await response.read(), f"WATCH {path}")
                async for line in lines_of(response.content):
                    yield decoded(line)
                    if clock() >= end:  # the timeout is seen only by a reader that has to wait
                        return
        except (aiohttp.ClientError, OSError, ValueError):  # ValueError: a line beyond all measure
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
