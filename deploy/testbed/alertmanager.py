"""The real Alertmanager, which posts to the product's webhook with its bearer token."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from testbed.build import path_of
from testbed.processes import PartFailedError, Processes
from testbed.readiness import answers


class Alertmanager:
    """A running Alertmanager with one receiver."""

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        *,
        webhook: str,
        token_file: Path,
        name: str = "alertmanager",
    ) -> None:
        self._name = name
        self._directory = directory / name
        self._processes = processes
        self._webhook = webhook
        self._token_file = token_file
        self.url = ""

    async def start(
        self,
        *,
        repeat_interval: timedelta = timedelta(hours=4),
        group_by: Sequence[str] = ("node",),
        max_alerts: int = 0,
    ) -> None:
        """Start it. Alerts of a group go out together, at once and again after `repeat_interval`.

        `max_alerts` cuts what is longer; 0 cuts nothing.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = self._directory / "alertmanager.yaml"
        configuration.write_text(
            yaml.safe_dump(self._configuration(repeat_interval, group_by, max_alerts), sort_keys=False)
        )

        def command(port: int) -> list[str]:
            return [
                str(path_of("alertmanager")),
                f"--config.file={configuration}",
                f"--storage.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ]

        port = await self._processes.serve(
            self._name, command, lambda port: answers(f"http://127.0.0.1:{port}/-/ready")
        )
        self.url = f"http://127.0.0.1:{port}"

    async def fire(
        self,
        labels: Mapping[str, str],
        annotations: Mapping[str, str] | None = None,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
    ) -> None:
        """Tell it of an alert, as Prometheus would. `alertname` and `node` belong into the labels.

        With `ends_at` in the past the alert is resolved. Raises `PartFailedError` if it is refused.
        """
        alert: dict[str, Any] = {
            "labels": dict(labels),
            "annotations": dict(annotations or {}),
            "startsAt": (starts_at or datetime.now(UTC)).isoformat(),
        }
        if ends_at:
            alert["endsAt"] = ends_at.isoformat()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/api/v2/alerts", json=[alert]) as response,
        ):
            if response.status != 200:
                raise PartFailedError(
                    f"Alertmanager refused {alert}: {response.status} {await response.text()}"
                )

    def _configuration(
        self, repeat_interval: timedelta, group_by: Sequence[str], max_alerts: int
    ) -> dict[str, Any]:
        authorization = {"type": "Bearer", "credentials_file": str(self._token_file)}
        return {
            "route": {
                "receiver": "gpu-runbooks",
                "group_by": list(group_by),
                "group_wait": "100ms",
                "group_interval": "1s",
                "repeat_interval": f"{int(repeat_interval.total_seconds() * 1000)}ms",
            },
            "receivers": [
                {
                    "name": "gpu-runbooks",
                    "webhook_configs": [
                        {
                            "url": self._webhook,
                            "max_alerts": max_alerts,
                            "http_config": {"authorization": authorization},
                        }
                    ],
                }
            ],
        }
