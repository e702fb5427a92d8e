"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Free memory of the machine, or of the container if that is less; None where the system does not say."""
    free = [each for each in (_machine(), _container()) if each is not None]
    return min(free) if free else None


def _machine() -> int | None:
    if not _MEMINFO.is_file():
        return None
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def _container() -> int | None:
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if not limit.is_file() or not used.is_file():
        return None
    text = limit.read_text(encoding="utf-8").strip()
    return None if text == "max" else max(int(text) - int(used.read_text(encoding="utf-8")), 0)
