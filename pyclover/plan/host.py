"""Free memory of the machine as a program may use it: the system's figure, and the limits of control groups.

MemAvailable counts page cache that can be dropped; MemFree does not, so right after a download it would say that a
machine is full. A control group charges page cache to its members, which is subtracted again here for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# A group without a limit says "max" (version 2) or a number near 2^63 (version 1).
_UNLIMITED = 1 << 60


def meminfo(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """The table of /proc/meminfo in bytes; {} where there is none."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    out = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            out[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return out


def cgroup_free(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that the tightest control group above this process leaves; None without a limit."""
    left = [room for folder in _groups(membership, mount) if (room := _room(folder)) is not None]
    return min(left, default=None)


def cgroup_limit(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The smallest limit of the control groups above this process, in bytes; None without one."""
    limits = [limit for folder in _groups(membership, mount) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _groups(membership: Path, mount: Path) -> Iterator[Path]:
    """Folders of the groups that count, from the process's own up to the root, in either version's layout.

    A container often sees its own group as the root of the mount while its name is that of the machine outside, so
    folders of the path that are not there are skipped. Where the process may not ask for its group, the root of the
    mount is looked at alone: on a machine outside a container it has no limit.
    """
    try:
        lines = membership.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        yield from (mount, mount / "memory")
        return
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) < 3:
            continue
        controllers, name = parts[1], parts[2]
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mount / "memory" if controllers else mount
        folder = root / name.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _limit(folder: Path) -> int | None:
    # above memory.high a group is slowed down until it is as good as stopped
    found = [_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    return min((n for n in found if n is not None), default=None)


def _room(folder: Path) -> int | None:
    limit = _limit(folder)
    if limit is None:
        return None
    used = _number(folder / "memory.current")
    prefix = ""
    if used is None:
        used, prefix = _number(folder / "memory.usage_in_bytes"), "total_"
    cache = 0
    try:
        stat = (folder / "memory.stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        stat = ""
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name in (f"{prefix}active_file", f"{prefix}inactive_file") and value.isdigit():
            cache += int(value)
    return max(0, limit - max(0, (used or 0) - cache))
