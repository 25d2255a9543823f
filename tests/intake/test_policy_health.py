"""What `/healthz` of the intake says of its policy file, while somebody edits it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from intake.conftest import Webhook

from gpu_runbooks.workers.policy import policy_file
from gpu_runbooks.workflows.policy.file import load_policy


@pytest.fixture
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_file, "INTERVAL", 0.02)
    monkeypatch.setattr(policy_file, "SETTLES", 0.02)


async def until(webhook: Webhook, wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{webhook.url}/healthz") as response:
                assert response.status == 200
                health = await response.json()
            if wanted(health):
                return health
            await asyncio.sleep(0.02)


async def test_bad_file_shows_and_the_policy_before_it_counts(
    quick_look: None, tmp_path: Path, webhook: Webhook
) -> None:
    file = tmp_path / "policy.yaml"
    good = file.read_text()
    digest = load_policy(good).digest
    health = await until(webhook, lambda _: True)
    assert health == {"status": "ok", "policy": digest, "policy_problem": ""}

    file.write_text(f"{good}\nfields-of-ours: {{secret: 1}}\n")
    health = await until(webhook, lambda each: each["policy_problem"] != "")
    assert (health["status"], health["policy"]) == ("ok", digest)
    assert health["policy_problem"].endswith(": fields-of-ours")

    changed = f"{good}\noperator: {{reminder: 1h}}\n"
    file.write_text(changed)
    health = await until(webhook, lambda each: each["policy"] != digest)
    assert health == {"status": "ok", "policy": load_policy(changed).digest, "policy_problem": ""}
