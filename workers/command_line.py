"""The command `gpu-runbooks`: a subcommand per role, the commands about policy, a report on hardware."""

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError

from gpu_runbooks.workers.policy import arguments as policy_arguments
from gpu_runbooks.workers.printable import printable_lines
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.fields import Duration

ROLES = {
    "intake": ("intake.role", "take in alerts and start incidents"),
    "controller": ("controller", "run the workflows"),
    "cluster-worker": ("cluster_worker", "run the activities that need Kubernetes"),
    "cloud-worker": ("cloud_worker", "run the activities that need AWS"),
    "node-agent": ("node_agent.agent", "serve the node that this process runs on"),
}
"""Module and purpose of each role. Imported when asked for: an agent needs neither boto3 nor Temporal."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong without passing on what would steer a terminal, and exits with 1: 2 is an answer."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.format_usage()}{self.prog}: {printable_lines(message)}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a role until SIGTERM or SIGINT, or a command; exits with 1 and a reason where it cannot run."""
    asked = _parser().parse_args(arguments)
    status = 0
    # A command says itself what matters; its libraries would say it a second time.
    level = logging.ERROR if asked.command == "policy" else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        if asked.command == "policy":
            from gpu_runbooks.workers.policy import commands  # noqa: PLC0415 - no role needs them

            status = commands.run(asked)
        elif asked.command == "lemons":
            asyncio.run(_lemons(asked.since, as_json=asked.json))
        else:
            asyncio.run(_run(ROLES[asked.command][0], Settings()))
    except KeyboardInterrupt:
        _exit(130)
    except (ValueError, OSError, RuntimeError) as error:
        sys.stderr.write(printable_lines(f"gpu-runbooks {' '.join(_words(asked))}: {error}") + "\n")
        _exit(1)
    _exit(status)


def _words(asked: argparse.Namespace) -> list[str]:
    return [asked.command, asked.policy_command] if asked.command == "policy" else [asked.command]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpu-runbooks", description="Durable runbooks for GPU nodes")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for role, (_, purpose) in ROLES.items():
        commands.add_parser(role, help=purpose)
    policy = commands.add_parser("policy", help="check, explain and compare policy files, before one acts")
    policy_arguments.add_to(policy, _duration)
    lemons = commands.add_parser("lemons", help="list the hardware that incidents repaired, most often first")
    lemons.add_argument(
        "--since", type=_duration, default="30d", help="how far back, such as 36h or 90d (default: 30d)"
    )
    lemons.add_argument("--json", action="store_true", help="print all that is known, as JSON")
    return parser


async def _run(module: str, settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for caught in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(caught, stop.set)
    role = importlib.import_module(f"gpu_runbooks.workers.{module}")
    await role.run(settings, stop)


def _duration(text: str) -> timedelta:
    try:
        return TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        message = f"write a duration with units, such as 36h or 30d, at most 365d; not {text[:80]!a}"
        raise argparse.ArgumentTypeError(message) from None


async def _lemons(since: timedelta, *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - no role needs these

    from gpu_runbooks.workers.hardware.lemons_report import report  # noqa: PLC0415

    await report(since, as_json=as_json, out=Console(), err=Console(stderr=True))


def _exit(status: int) -> None:
    """End without finalisation, which can abort in the SDK's threads (temporalio/sdk-python#300)."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
