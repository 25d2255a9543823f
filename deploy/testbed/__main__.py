"""Command line of the testbed: `python -m testbed build | up | demo | bench-... | down`."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from testbed import running
from testbed.build import BinaryMissingError, BuildFailedError, build_missing
from testbed.detach import Starter, run_detached
from testbed.gpus import CompilerMissingError
from testbed.processes import PartFailedError
from testbed.progress import Progress
from testbed.run_directory import run_directory
from testbed.toolchain import GoMissingError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the binaries that are missing (minutes the first time)")
    up = commands.add_parser("up", help="start a testbed and leave it running")
    up.add_argument("--nodes", type=int, default=8, help="GPU nodes of the pool (default: 8)")
    show = commands.add_parser("demo", help="show five faults and their repairs")
    show.add_argument("--keep", action="store_true", help="leave everything running")
    bench = commands.add_parser("bench-drain", help="measure our drain against kubectl's")
    intake = commands.add_parser(
        "bench-intake", help="measure what the intake reads, replays, watches, takes"
    )
    burst = commands.add_parser("bench-burst", help="measure 200 faults at once on 1,000 nodes")
    storm = commands.add_parser("bench-storm", help="let a broken detector loose on ours and on Karpenter")
    storm.add_argument(
        "--step", type=float, default=30.0, metavar="SECONDS", help="between its steps (default: 30)"
    )
    for one in (bench, intake, burst, storm):
        one.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    commands.add_parser("down", help="stop the testbeds that were left running")
    asked = parser.parse_args(arguments)
    if asked.command.startswith("bench") and asked.json and not asked.json.parent.is_dir():
        parser.error(f"--json {asked.json}: there is no folder {asked.json.parent}")  # now, not after minutes
    try:
        if asked.command == "build":
            asyncio.run(build_missing(Progress()))
            return 0
        if asked.command == "demo":
            return _demo(keep=asked.keep)
        if asked.command == "bench-drain":
            return _bench_drain(asked.json)
        if asked.command == "bench-intake":
            return _bench_intake(asked.json)
        if asked.command == "bench-burst":
            return _bench_burst(asked.json)
        if asked.command == "bench-storm":
            return _bench_storm(asked.json, asked.step)
        return _up(asked.nodes) if asked.command == "up" else _down()
    except (
        BinaryMissingError,
        BuildFailedError,
        CompilerMissingError,
        GoMissingError,
        PartFailedError,
    ) as error:
        print(error, file=sys.stderr)
        return 1


def _demo(*, keep: bool) -> int:
    async def show(starter: Starter) -> int:
        # here, so that `build` needs neither boto3 nor Temporal
        from testbed.demo import demo  # noqa: PLC0415

        return await demo(starter, keep=keep)

    return run_detached(show)


def _bench_drain(output: Path | None) -> int:
    # here, so that `build` needs neither boto3 nor Temporal
    from testbed.bench_drain import bench_drain  # noqa: PLC0415
    from testbed.bench_drains import DrainFailedError  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    try:
        return asyncio.run(bench_drain(output))
    except DrainFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _bench_intake(output: Path | None) -> int:
    # here, so that `build` needs neither boto3 nor Temporal
    from testbed.bench_intake import bench_intake  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    try:
        return bench_intake(output)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _bench_burst(output: Path | None) -> int:
    # here, so that `build` needs neither boto3 nor Temporal
    from testbed.bench_burst import bench_burst  # noqa: PLC0415

    return _interruptible(bench_burst(output))


def _bench_storm(output: Path | None, step: float) -> int:
    # here, so that `build` needs neither boto3 nor Temporal
    from testbed.bench_storm import bench_storm  # noqa: PLC0415
    from testbed.bench_storm.plan import Plan  # noqa: PLC0415

    return _interruptible(bench_storm(output, Plan(step_seconds=step)))


def _interruptible(bench: Coroutine[Any, Any, int]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    try:
        return asyncio.run(bench)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _up(nodes: int) -> int:
    async def serve(starter: Starter) -> int:
        # here, so that `build` needs neither boto3 nor Temporal
        from testbed.testbed import Testbed  # noqa: PLC0415

        with run_directory(running.file_of(os.getpid())) as directory:
            async with Testbed.start(directory, nodes=nodes) as testbed:
                names = [node["metadata"]["name"] for node in await testbed.fleet.nodes()]
                with Progress().step(f"Agents of {len(names)} nodes"):
                    await asyncio.gather(*map(testbed.agents.start, names))
                running.announce(directory, testbed.addresses())
                for what, address in testbed.addresses().items():
                    print(f"  {what}: {address}")
                print("It runs until `make testbed-down`.")
                starter.release(0, directory / "logs" / "testbed.log")
                await asyncio.Event().wait()
        return 0

    return run_detached(serve)


def _down() -> int:
    found = running.running()
    if not found:
        print("No testbed runs in the background.")
    stuck = [one for one in found if not running.stop(one)]
    for one in stuck:
        print(f"Process {one.pid} does not end: kill it (SIGKILL ends its parts too).", file=sys.stderr)
    for one in found:
        if one not in stuck:
            print(f"Stopped the testbed of process {one.pid}.")
    return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main())
