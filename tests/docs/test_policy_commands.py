"""The outputs on the page about the commands are those of the commands."""

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_runbooks.workers.command_line import _parser
from gpu_runbooks.workers.policy.commands import run
from gpu_runbooks.workers.policy.explanation import Verdict
from gpu_runbooks.workers.policy.fault_notation import read_fault

PAGE = (Path(__file__).parents[2] / "docs" / "policy-commands.md").read_text()
RUNS = re.findall(r"```console\n\$ gpu-runbooks (.*?)\n(.*?)```", PAGE, re.DOTALL)
DIGEST = re.compile(r"\b[0-9a-f]{16}\b")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "output"), RUNS, ids=[command.split()[1] for command, _ in RUNS])
def test_a_command_prints_what_the_page_says(command, output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in zip(("policy.yaml", "new.yaml"), blocks("yaml"), strict=True):
        (tmp_path / name).write_text(content)
    (tmp_path / "events.jsonl").write_text(blocks("json")[0])
    run(_parser().parse_args(shlex.split(command)))
    # A release that changes a built-in table changes every digest.
    assert DIGEST.sub("DIGEST", capsys.readouterr().out) == DIGEST.sub("DIGEST", output)


def test_each_command_and_each_verdict_has_a_row(capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args(["policy", "--help"])
    offered = set(re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"^\| `policy (\w+)", PAGE, re.MULTILINE)) == offered
    rows = PAGE.partition("| `now:` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", rows, re.MULTILINE)) == {*Verdict}


def test_the_notations_on_the_page_are_read():
    rows = PAGE.partition("| `--fault` |")[2].partition("\n\n")[0]
    written = re.findall(r"`((?:\w+:[^`]+)|manual)`", rows)
    assert len(written) > 8
    for each in written:
        if "TYPE" not in each:
            assert read_fault(each, datetime.now(UTC)).code
