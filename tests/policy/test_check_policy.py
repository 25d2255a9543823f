"""What `gpu-runbooks check-policy` says of a file that can be used."""

from policy.factories import SMALLEST

from gpu_runbooks.workers.policy.check import check_policy


def test_pools_ladders_and_repairs_of_each_pool(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(
        SMALLEST.replace(
            "validation:",
            """\
- name: spare
  selector: {team: search}
  budget: {max_unavailable: 1}
  repair: {replace: ask, launch_first: true, repeats: {window: 36h, reboots: 1}}
validation:""",
        )
    )
    first, *lines = check_policy(file).splitlines()
    assert first.startswith(f"{file}: valid, mode enforce, digest ")
    assert lines == [
        "pools: p5 (at most 3), spare (at most 1)",
        "ladders: block, drain, none, notify, reboot, replace, reset, restart",
        (
            "repairs in p5: reset_scope gpu, reboot ec2, replace allowed, launch_first false, "
            "without_evidence go-on; at most, of the same hardware within 7 days: resets 3, reboots 3, "
            "replacements 2"
        ),
        (
            "repairs in spare: reset_scope gpu, reboot ec2, replace ask, launch_first true, "
            "without_evidence go-on; at most, of the same hardware within 36 hours: resets 3, reboots 1, "
            "replacements 2"
        ),
    ]
