"""Repeats of what is known wait while something new is handed over, and only for a while."""

import asyncio
from datetime import UTC, datetime

import pytest
from incident.plans import fault, identity, report
from intake.alerts import fresh as alert
from intake.conftest import CLUSTER, Webhook

from gpu_runbooks.activities.temporal import Temporal as TemporalActivities
from gpu_runbooks.workers.intake import precedence
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.places import Places
from gpu_runbooks.workers.intake.precedence import Precedence


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_repeats_go_when_the_last_of_the_news_is_handed_over():
    order = Precedence()
    await order.give_way()  # nothing is new
    with order.news():
        repeat = asyncio.create_task(order.give_way())
        with order.news():
            await settled()
            assert not repeat.done()
        await settled()
        assert not repeat.done()
    await settled()
    assert repeat.done()


async def test_news_that_fail_hold_nobody_up():
    order = Precedence()
    with pytest.raises(TimeoutError), order.news():
        raise TimeoutError
    await order.give_way()


async def test_news_that_take_long_hold_repeats_up_once(monkeypatch):
    monkeypatch.setattr(precedence, "LONGEST", 0.01)
    order = Precedence()
    with order.news():
        await order.give_way()
        with order.news():
            await order.give_way()
    monkeypatch.setattr(precedence, "LONGEST", 60.0)
    with order.news():  # the next ones have their time again
        repeat = asyncio.create_task(order.give_way())
        await settled()
        assert not repeat.done()
    await repeat


@pytest.mark.usefixtures("controller")
async def test_a_repeat_is_answered_behind_the_news_of_another_node(
    webhook: Webhook, make_node, monkeypatch
) -> None:
    monkeypatch.setattr(precedence, "LONGEST", 600.0)
    known, other = await make_node(), await make_node()
    await webhook.post(alert(node=known, xid="79", fingerprint="known"))
    at_work, go_on, tell = asyncio.Event(), asyncio.Event(), TemporalActivities.ensure_guard

    async def slow(self, request) -> None:
        at_work.set()
        await go_on.wait()
        await tell(self, request)

    monkeypatch.setattr(TemporalActivities, "ensure_guard", slow)
    monkeypatch.setattr("gpu_runbooks.workers.intake.telling_guard.TELL_SECONDS", 600.0)
    news = asyncio.create_task(webhook.post(alert(node=other, xid="79", fingerprint="news")))
    await at_work.wait()
    repeat = asyncio.create_task(webhook.post(alert(node=known, xid="79", fingerprint="known")))
    done, _ = await asyncio.wait({repeat}, timeout=0.5)
    assert not done
    go_on.set()
    assert (await news)[1]["alerts"][0]["status"] == "started"
    assert (await repeat)[1]["alerts"][0]["status"] == "duplicate"


@pytest.mark.usefixtures("controller")
async def test_a_repeat_that_waits_keeps_no_place_from_news_of_its_notification(webhook: Webhook, node: str):
    incidents, places = Incidents(webhook.temporal, CLUSTER), Places(1)
    seen = report("reboot", of=fault("79", at=datetime.now(UTC)), identity=identity(node))

    async def deliver() -> str:
        async with places.one():
            return (await incidents.deliver(seen, wrong=[], max_age=None)).status

    assert await deliver() == "started"
    with incidents._precedence.news():
        repeat = asyncio.create_task(deliver())
        await settled()
        async with asyncio.timeout(10), places.one():
            assert not repeat.done()
    assert await repeat == "duplicate"
