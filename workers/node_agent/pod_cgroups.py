"""Which pod a process belongs to, by its cgroup.

The kubelet gives each pod a cgroup with the pod's UID in its name. Around that name everything varies:
cgroup v1 has a line per hierarchy and v2 has one, the systemd driver makes slices (a `-` of the UID becomes
`_`) and the cgroupfs driver folders, classes burstable and besteffort lie a level deeper than guaranteed, a
root of its own may stand before it all, and a reader in another cgroup namespace sees `/../..` in place of
the beginning. So the name alone decides.

Source of the names: kubelet, `pkg/kubelet/cm` (`pod_container_manager_linux.go`, `cgroup_manager_linux.go`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SLICE = re.compile(
    r"(?:.+-)?pod(?P<uid>[0-9a-f]{8}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{12}|[0-9a-f]{32})\.slice"
)
"""systemd driver."""

FOLDER = re.compile(r"pod(?P<uid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})")
"""cgroupfs driver. 32 digits without dashes are a static pod, in either driver."""

MOST_PODS = 64
"""Limit of the CRD for one GPU."""


@dataclass(frozen=True)
class Holders:
    """Who the processes of one GPU belong to."""

    pod_uids: tuple[str, ...] | None
    host_processes: int | None


UNKNOWN = Holders(None, None)


def pod_uid(cgroups: str) -> str | None:
    """UID of the pod, from the content of `/proc/<pid>/cgroup`; None for a process of no pod.

    A container may run a kubelet of its own: the outermost name is the pod of this node.
    """
    for line in cgroups.splitlines():
        path = line.split(":", 2)[-1].removesuffix(" (deleted)")
        # A runtime that does not know of the kubelet's systemd driver names `<slice>:<prefix>:<container>`.
        for name in re.split("[/:]", path):
            if found := SLICE.fullmatch(name) or FOLDER.fullmatch(name):
                return found["uid"].replace("_", "-")
    return None


def holders(proc: Path, pids: Iterable[int]) -> Holders:
    """Who holds a device, of the processes that still live.

    `host_processes` is None where the cgroup of one of them cannot be read, since it may be of a pod.
    """
    if not proc.is_dir():
        return UNKNOWN
    pods: set[str] = set()
    host, unread = 0, 0
    for pid in pids:
        try:
            uid = pod_uid((proc / str(pid) / "cgroup").read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            unread += 1
            continue
        if uid is None:
            host += 1
        else:
            pods.add(uid)
    if (unread and not pods and not host) or len(pods) > MOST_PODS:
        return UNKNOWN
    return Holders(tuple(sorted(pods)), None if unread else host)
