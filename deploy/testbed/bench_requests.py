"""How many requests a drain costs the API server, counted by the API server itself: its audit log."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Window:
    """From when to when a drain lasted."""

    began: datetime
    ended: datetime

    @property
    def seconds(self) -> float:
        return (self.ended - self.began).total_seconds()


class RequestLog:
    """Every request of the given users, once each. What others ask is not logged: logging costs time."""

    def __init__(self, directory: Path, users: Iterable[str]) -> None:
        self._policy = directory / "audit-policy.yaml"
        self._log = directory / "audit.log"
        whose = {"level": "Metadata", "users": list(users)}
        # A watch counts when it begins, since it may outlive what it was for; all else when it is answered.
        rules = [
            {**whose, "verbs": ["watch"], "omitStages": ["RequestReceived", "ResponseComplete"]},
            {**whose, "omitStages": ["RequestReceived", "ResponseStarted"]},
            {"level": "None"},
        ]
        self._policy.write_text(
            yaml.safe_dump({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """What the API server must be told for it."""
        return f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}"

    def count(self, user: str, window: Window) -> int:
        """Requests of a user that arrived within the window."""
        with self._log.open() as lines:
            events = [json.loads(line) for line in lines]
        return sum(
            event["user"]["username"] == user
            and window.began <= datetime.fromisoformat(event["requestReceivedTimestamp"]) <= window.ended
            for event in events
        )
