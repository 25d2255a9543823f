"""The stages by which kwok acts out nodes: copies that differ in nothing but the heartbeat."""

import yaml

from testbed.kwok_stages import HEARTBEAT, STAGES, write_stages


def stages_of(files):
    return {
        stage["metadata"]["name"]: stage for file in files for stage in yaml.safe_load_all(file.read_text())
    }


def test_only_the_heartbeat_is_another_one(tmp_path):
    written = stages_of(write_stages(tmp_path / "stages", 300))
    original = stages_of(STAGES.glob("*.yaml"))
    delay = written[HEARTBEAT]["spec"].pop("delay")
    assert delay == {"durationMilliseconds": 300_000, "jitterDurationMilliseconds": 375_000}
    assert original[HEARTBEAT]["spec"].pop("delay") == {
        "durationMilliseconds": 20_000,
        "jitterDurationMilliseconds": 25_000,
    }
    assert written == original
