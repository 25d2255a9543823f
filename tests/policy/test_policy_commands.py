"""The commands as a shell runs them: their exit statuses, and nothing that steers a terminal."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from policy.factories import P5, SMALLEST, fault

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workers.command_line import _parser, main
from gpu_runbooks.workers.policy import commands
from gpu_runbooks.workers.policy.recorded_faults import RecordedFault
from gpu_runbooks.workflows.policy.schema import policy_schema

COMMAND = Path(sys.executable).with_name("gpu-runbooks")


async def run(folder, *words):
    """Status, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "policy",
        *words,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_exit_statuses_and_inert_errors(tmp_path):
    (tmp_path / "old.yaml").write_text(SMALLEST)
    (tmp_path / "new.yaml").write_text(SMALLEST.replace("mode: enforce", "mode: observe"))
    (tmp_path / "bad.yaml").write_text(SMALLEST + 'colour: "\x1b[2J"\n' + "shape: round\n")
    event = RecordedFault(
        node="gpu-a1", labels=P5, instance_type="p5.48xlarge", fault=fault(FaultSource.XID, "79")
    )
    (tmp_path / "events.jsonl").write_text(event.model_dump_json() + "\n")
    different, broken, hostile = await asyncio.gather(
        run(tmp_path, "diff", "old.yaml", "new.yaml", "--events", "events.jsonl"),
        run(tmp_path, "check", "bad.yaml"),
        run(tmp_path, "explain", "--policy", "old.yaml", "--node", "../\x1b[2J", "--fault", "xid:79"),
    )
    assert (different[0], different[2]) == (2, "")
    assert "enforce: true -> false" in different[1]
    for status, out, err in (broken, hostile):
        assert (status, out) == (1, "")
        assert err.startswith("gpu-runbooks policy ")
        assert all(line.isprintable() for line in err.splitlines())


def test_a_command_that_cannot_be_understood_is_no_difference(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["policy", "diff", "old.yaml", "new.yaml", "--events", "events.jsonl", "--\x1b[2J"])
    assert ended.value.code == 1
    assert all(line.isprintable() for line in capsys.readouterr().err.splitlines())


def test_the_schema_is_printed(capsys):
    assert commands.run(_parser().parse_args(["policy", "schema"])) == 0
    assert json.loads(capsys.readouterr().out) == policy_schema()
