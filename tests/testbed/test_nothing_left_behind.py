"""Whatever kills the starter, its processes and files go with it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"

STARTER = """
import asyncio
from testbed.processes import Processes
from testbed.run_directory import run_directory

async def main():
    with run_directory() as directory:
        async with Processes(directory / "logs") as processes:
            pids = [(await processes.start(name, ["sleep", "1000"])).pid for name in ("one", "two")]
            print(directory, *pids, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""

DETACHED = """
import asyncio, os, sys
from pathlib import Path
from testbed.detach import run_detached
from testbed.processes import Processes
from testbed.run_directory import run_directory

async def serve(starter):
    with run_directory() as directory:
        async with Processes(directory / "logs") as processes:
            child = await processes.start("one", ["sleep", "1000"])
            print(directory, child.pid, os.getpid(), flush=True)
            if sys.argv[1] == "release":
                starter.release(7, Path(sys.argv[2]))
            await asyncio.Event().wait()

sys.exit(run_detached(serve))
"""


async def run(script, *arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        *arguments,
        env={**os.environ, "PYTHONPATH": str(DEPLOY)},
        stdout=asyncio.subprocess.PIPE,
    )
    directory, *pids = (await process.stdout.readline()).decode().split()
    return process, Path(directory), [int(pid) for pid in pids]


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def all_there(directory, pids):
    return directory.is_dir() and all(map(is_alive, pids))


async def until_gone(directory, pids):
    async with asyncio.timeout(60):
        while directory.exists() or any(map(is_alive, pids)):
            await asyncio.sleep(0.02)


async def test_after_sigkill_of_the_starter():
    starter, directory, pids = await run(STARTER)
    assert all_there(directory, pids)
    starter.kill()
    await starter.wait()
    await until_gone(directory, pids)


async def test_after_ctrl_c():
    starter, directory, pids = await run(STARTER)
    starter.send_signal(signal.SIGINT)
    await starter.wait()
    await until_gone(directory, pids)


async def test_a_detached_process_that_was_not_released_ends_with_its_starter():
    starter, directory, pids = await run(DETACHED, "hold")
    starter.kill()
    await starter.wait()
    await until_gone(directory, pids)


async def test_ctrl_c_waits_until_the_detached_process_has_tidied_up():
    starter, directory, pids = await run(DETACHED, "hold")
    starter.send_signal(signal.SIGINT)
    assert await starter.wait() == 128 + signal.SIGINT
    assert not directory.exists()
    await until_gone(directory, pids)


async def test_a_released_process_outlives_its_starter_until_it_is_told_to_end(tmp_path):
    starter, directory, pids = await run(DETACHED, "release", str(tmp_path / "log"))
    assert await starter.wait() == 7
    assert all_there(directory, pids)
    os.kill(pids[-1], signal.SIGTERM)
    await until_gone(directory, pids)
