"""What `gpu-runbooks policy check` says of a file, for people and for programs."""

from policy.factories import SMALLEST

from gpu_runbooks.workers.policy.check import check, check_as_json
from gpu_runbooks.workflows.policy.file import load_policy

TWO_POOLS = SMALLEST.replace(
    "validation:",
    """\
- name: spare
  selector: {team: search}
  budget: {max_unavailable: 1}
  repair: {replace: ask, launch_first: true, repeats: {window: 36h, reboots: 1}}
validation:""",
)


def test_pools_ladders_and_repairs_of_each_pool(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(TWO_POOLS)
    first, *lines = check(file).splitlines()
    assert first.startswith(f"{file}: valid, mode enforce, digest ")
    assert lines == [
        "pool p5: mode enforce, at most 3 at once, at any time, no owners",
        (
            "  repairs: reset_scope gpu, reboot ec2, replace allowed, launch_first false, "
            "without_evidence stop; at most, of the same hardware within 7 days: resets 3, reboots 3, "
            "replacements 2"
        ),
        "pool spare: mode enforce, at most 1 at once, at any time, no owners",
        (
            "  repairs: reset_scope gpu, reboot ec2, replace ask, launch_first true, "
            "without_evidence stop; at most, of the same hardware within 36 hours: resets 3, reboots 1, "
            "replacements 2"
        ),
        "ladders: block, drain, none, notify, reboot, replace, reset, restart",
    ]


def test_windows_owners_modes_approvals_rules_and_hardware(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(
        SMALLEST.replace(
            "  budget: {max_unavailable: 3}",
            """\
  budget: {max_unavailable: 3}
  mode: observe
  owners: team search
  windows: [{days: [sat, sun], begins: "22:00", lasts: 4h, timezone: Europe/Stockholm}]
ladders:
  careful:
  - {rung: block}
  - {rung: drain}
  - {rung: reboot, approval: true}
  - {rung: replace, mode: observe}
  - {rung: validate}
  - {rung: return}
faults:
- {name: fell-off, match: {source: xid, code: 79}, ladder: careful}
hardware: {p5.48xlarge: {efa_interfaces: 16}}""",
        )
    )
    _, *lines = check(file).splitlines()
    assert lines[0] == (
        "pool p5: mode observe, at most 3 at once, sat, sun 22:00 for 4h Europe/Stockholm, owners team search"
    )
    assert lines[3:] == [
        "  careful: reboot asks for approval, replace is observed only",
        "rules of the site: fell-off",
        "hardware of p5.48xlarge: 8 GPUs, 16 EFA interfaces, NVLink",
    ]


def test_for_programs_each_error_has_line_and_field(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(SMALLEST.replace("max_unavailable: 3}", "max_unavailable: 0}\n  colour: red"))
    said = check_as_json(file)
    assert said["valid"] is False
    assert [(each["line"], each["field"]) for each in said["errors"]] == [
        (5, "pools[0].budget.max_unavailable"),
        (6, "pools[0].colour"),
    ]
    file.write_text(SMALLEST)
    said = check_as_json(file)
    assert (said["valid"], said["errors"]) == (True, [])
    assert said["digest"] == load_policy(SMALLEST).digest
