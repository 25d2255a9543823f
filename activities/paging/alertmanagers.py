"""The site's Alertmanagers: each replica gets each alert, since they share notifications and not alerts."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

TIMEOUT = 5.0
"""Seconds for one replica: they are asked at the same time."""

MOST_REPLICAS = 10

LONGEST_ANSWER = 200
"""Characters of a refusal that are passed on."""


def addresses(setting: str) -> tuple[str, ...]:
    """Addresses in the setting, separated by commas; none for an empty one.

    Raises `ValueError`, in words for a person, for what is no address.
    """
    found = []
    for part in filter(None, (each.strip() for each in setting.split(","))):
        try:
            address = urlsplit(part)
            host = (address.hostname or "").encode("idna")  # a label of it that is empty or too long raises
            is_address = address.scheme in {"http", "https"} and bool(host.strip(b"."))
            _ = address.port  # reading it checks it
        except ValueError:
            is_address = False
        if not is_address or address.query or address.fragment or len(part.split()) > 1:
            raise ValueError(
                f"GPU_RUNBOOKS_ALERTMANAGER: {_without_password(part)!r} is no address; write such as "
                "http://alertmanager-operated.monitoring:9093, several replicas with commas in between"
            )
        found.append(part.rstrip("/"))
    if len(found) > MOST_REPLICAS:
        raise ValueError(f"GPU_RUNBOOKS_ALERTMANAGER: {len(found)} addresses, at most {MOST_REPLICAS}")
    return tuple(dict.fromkeys(found))


class Alertmanagers:
    """All replicas, over one session. Without an address there is nobody to tell."""

    def __init__(self, replicas: tuple[str, ...] = (), session: aiohttp.ClientSession | None = None) -> None:
        self._replicas = replicas
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls, setting: str) -> AsyncIterator["Alertmanagers"]:
        """Connect as the setting says. Raises `ValueError` for what is no address."""
        replicas = addresses(setting)
        limits = aiohttp.ClientTimeout(
            total=TIMEOUT, connect=TIMEOUT, sock_connect=TIMEOUT, sock_read=TIMEOUT
        )
        async with aiohttp.ClientSession(timeout=limits) as session:
            yield cls(replicas, session)

    @property
    def known(self) -> bool:
        """Whether the site has told of one."""
        return bool(self._replicas)

    async def tell(self, alert: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Tell all replicas of an alert. How many took it, and why each of the others did not."""
        problems = await asyncio.gather(*(self._tell_one(replica, alert) for replica in self._replicas))
        return problems.count(""), list(filter(None, problems))

    async def _tell_one(self, replica: str, alert: Mapping[str, Any]) -> str:
        if self._session is None:
            return ""
        url, shown = f"{replica}/api/v2/alerts", _without_password(replica)
        try:
            async with self._session.post(url, json=[alert], allow_redirects=False) as answer:
                if answer.status == 200:
                    return ""
                said = (await answer.content.read(LONGEST_ANSWER)).decode(errors="replace")
        except TimeoutError:
            return f"{shown}: no answer in {TIMEOUT:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{shown}: {type(error).__name__}"
        return f"{shown}: {answer.status} {said.strip()}"


def _without_password(address: str) -> str:
    before, at, after = address.rpartition("@")
    return f"{before.partition('://')[0]}://...@{after}" if at else address
