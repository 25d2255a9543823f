"""Alerts on their way to the webhook, as Alertmanager posts them: what is not taken is sent again."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from testbed.product import Product

AGAIN_SECONDS = 1.0
"""Before a notification that was not taken is sent again."""

PATIENCE = 300.0
"""Seconds after which a notification that was never taken is given up."""


class Webhook:
    """The webhook of the running intake, and what it answered."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.answers: Counter[str] = Counter()
        """How many alerts were answered with which status, those that were sent again included."""

    @classmethod
    @asynccontextmanager
    async def of(cls, product: Product) -> AsyncIterator["Webhook"]:
        headers = {"Authorization": f"Bearer {product.token_file.read_text().strip()}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            yield cls(session, product.webhook)

    async def post(self, alert: Mapping[str, Any]) -> bool:
        """Post one alert until it is taken; returns whether it ever was."""
        body = {"version": "4", "alerts": [alert], "truncatedAlerts": 0}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            status = await self._answer(body)
            self.answers[status] += 1
            if status in {"started", "joined", "duplicate"}:
                return True
            await asyncio.sleep(AGAIN_SECONDS)
        return False

    async def _answer(self, body: Mapping[str, Any]) -> str:
        try:
            async with self._session.post(self._url, json=body) as response:
                answer = await response.json()
        except aiohttp.ClientError as error:
            return type(error).__name__
        if "alerts" not in answer:
            return f"HTTP {response.status}"
        return str(answer["alerts"][0]["status"])
