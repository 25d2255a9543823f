"""The real Alertmanager brings an alert to the webhook, with the bearer token."""

import asyncio

from aiohttp import web

from testbed.alertmanager import Alertmanager
from testbed.ports import free_port
from testbed.processes import Processes


async def test_an_alert_reaches_the_webhook_with_its_token(tmp_path):
    received = asyncio.Queue()

    async def receive(request):
        received.put_nowait((request.headers.get("Authorization"), await request.json()))
        return web.Response()

    application = web.Application()
    application.router.add_post("/alertmanager", receive)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    try:
        async with Processes(tmp_path / "logs") as processes:
            webhook = f"http://127.0.0.1:{port}/alertmanager"
            alertmanager = Alertmanager(tmp_path, processes, webhook=webhook, token_file=token_file)
            await alertmanager.start()
            await alertmanager.fire(
                {"alertname": "XidError", "node": "gpu-01", "xid": "79"}, {"summary": "gone"}
            )
            authorization, body = await asyncio.wait_for(received.get(), 20)
    finally:
        await runner.cleanup()
    assert authorization == "Bearer secret"
    assert (body["version"], body["status"]) == ("4", "firing")
    assert [alert["labels"]["node"] for alert in body["alerts"]] == ["gpu-01"]
