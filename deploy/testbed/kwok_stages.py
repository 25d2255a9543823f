"""The files by which kwok acts out nodes and pods, with heartbeats as often as wanted."""

from pathlib import Path

import yaml

STAGES = Path(__file__).parent / "stages"

HEARTBEAT = "node-heartbeat"
"""Stage by which a kubelet posts its status though nothing has changed."""


def write_stages(directory: Path, heartbeat_seconds: int) -> list[Path]:
    """Write copies of the files into a folder, and return them. The heartbeats of many nodes spread."""
    directory.mkdir(exist_ok=True)
    written = []
    for file in sorted(STAGES.glob("*.yaml")):
        stages = list(yaml.safe_load_all(file.read_text()))
        for stage in stages:
            if stage["metadata"]["name"] == HEARTBEAT:
                milliseconds = heartbeat_seconds * 1000
                stage["spec"]["delay"] = {
                    "durationMilliseconds": milliseconds,
                    "jitterDurationMilliseconds": milliseconds * 5 // 4,
                }
        copy = directory / file.name
        copy.write_text(yaml.safe_dump_all(stages, sort_keys=False))
        written.append(copy)
    return written
