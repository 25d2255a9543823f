"""The command `gpu-runbooks`: one subcommand per role, and a check of the policy file."""

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_runbooks.workers.settings import Settings

ROLES = {
    "intake": ("intake", "take in alerts and start incidents"),
    "controller": ("controller", "run the workflows"),
    "cluster-worker": ("cluster_worker", "run the activities that need Kubernetes"),
    "cloud-worker": ("cloud_worker", "run the activities that need AWS"),
    "node-agent": ("node_agent.agent", "serve the node that this process runs on"),
}
"""Module and purpose of each role. Imported when asked for: an agent needs neither boto3 nor Temporal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a role until SIGTERM or SIGINT; exits with 1 and a reason where it cannot run."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        if asked.command == "check-policy":
            from gpu_runbooks.workers.policy_check import check_policy  # noqa: PLC0415 - no role needs it

            sys.stdout.write(check_policy(asked.file) + "\n")
        else:
            asyncio.run(_run(ROLES[asked.command][0], Settings()))
    except (ValueError, OSError, RuntimeError) as error:
        sys.stderr.write(f"gpu-runbooks {asked.command}: {error}\n")
        _exit(1)
    _exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-runbooks", description="Durable runbooks for GPU nodes")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for role, (_, purpose) in ROLES.items():
        commands.add_parser(role, help=purpose)
    check = commands.add_parser(
        "check-policy", help="check a policy file and say which pools and ladders it has"
    )
    check.add_argument("file", type=Path)
    return parser


async def _run(module: str, settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for caught in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(caught, stop.set)
    role = importlib.import_module(f"gpu_runbooks.workers.{module}")
    await role.run(settings, stop)


def _exit(status: int) -> None:
    """End without finalisation, which can abort in the SDK's threads (temporalio/sdk-python#300)."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
