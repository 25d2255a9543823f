"""The words of `gpu-runbooks policy ...`. Imports nothing that a role does without."""

import argparse
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

LABEL = re.compile(r"[A-Za-z0-9_./-]{1,317}=[A-Za-z0-9_.-]{0,63}", re.ASCII)
CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)


def add_to(parser: argparse.ArgumentParser, duration: Callable[[str], timedelta]) -> None:
    """Give the parser of `policy` its commands."""
    commands = parser.add_subparsers(dest="policy_command", required=True, metavar="COMMAND")
    checked = commands.add_parser("check", help="check a policy file; each error with line and field")
    checked.add_argument("file", type=Path)
    _json(checked)
    commands.add_parser("schema", help="print the JSON Schema of the policy file, for editors")
    _add_explain(
        commands.add_parser("explain", help="what a fault on a node would get, and what happens now")
    )
    recorded = commands.add_parser(
        "record", help="write the faults of past incidents, one JSON object a line"
    )
    recorded.add_argument(
        "--since", type=duration, default="30d", help="how far back, such as 36h or 90d (default: 30d)"
    )
    recorded.add_argument("--cluster", type=_cluster, help="only incidents of this cluster")
    compared = commands.add_parser(
        "diff", help="replay recorded faults through two policies; exits with 2 where they differ"
    )
    compared.add_argument("old", type=Path)
    compared.add_argument("new", type=Path)
    compared.add_argument("--events", type=Path, required=True, help="file that `policy record` wrote")
    compared.add_argument("--skip-broken", action="store_true", help="count broken lines, and go on")
    _json(compared)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", required=True, help="name of the Node")
    parser.add_argument(
        "--fault",
        required=True,
        help="such as xid:79, sxid:20034/fatal, condition:Ready=False/KubeletNotReady",
    )
    parser.add_argument("--policy", type=Path, help="the policy file (default: GPU_RUNBOOKS_POLICY)")
    parser.add_argument(
        "--cluster", type=_cluster, help="name of the cluster (default: GPU_RUNBOOKS_CLUSTER)"
    )
    parser.add_argument("--status", help="status of the condition")
    parser.add_argument("--reason", help="reason of the condition")
    parser.add_argument("--place", help="where on the GPU, such as 'GPC 2 TPC 1'")
    parser.add_argument("--before", type=_count, help="how often it was seen at this place before")
    parser.add_argument("--recovery-action", type=_count, help="what the driver asks for, NVML's number")
    parser.add_argument("--offline", action="store_true", help="ask neither Kubernetes nor Temporal")
    parser.add_argument("--labels", type=_labels, help="labels of the Node, such as team=search,tier=p5")
    parser.add_argument("--instance-type", type=_instance_type, help="such as p5.48xlarge")
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print all of it, as JSON")


def _labels(text: str) -> dict[str, str]:
    labels = text.split(",") if text else []
    if wrong := next((each for each in labels if not LABEL.fullmatch(each)), None):
        raise argparse.ArgumentTypeError(f"write labels as key=value,key=value; not {wrong[:80]!a}")
    return dict(each.split("=", 1) for each in labels)


def _cluster(text: str) -> str:
    return _word(text, "a cluster's name, such as prod")


def _instance_type(text: str) -> str:
    return _word(text, "an instance type, such as p5.48xlarge")


def _word(text: str, what: str) -> str:
    if not CLUSTER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"write {what}; not {text[:80]!a}")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise argparse.ArgumentTypeError(f"write a whole number; not {text[:80]!a}")
    return int(text)
