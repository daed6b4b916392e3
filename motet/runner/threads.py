"""How many threads to compute with.

A second hardware thread of a core brings nothing to kernels that keep its arithmetic units busy, and a thread beyond
the cgroup's quota is stopped in mid-step while the others wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class ThreadCount:
    """The default number of threads and what it follows from.

    num_usable_cores: physical cores with at least one CPU that this process may use; num_cores: of the machine
    quota: CPUs' worth of time that the cgroup allows, None without a limit
    """

    num_cores: int
    num_usable_cores: int
    quota: float | None

    @property
    def num_threads(self) -> int:
        if self.quota is None:
            return self.num_usable_cores
        return max(1, min(self.num_usable_cores, int(self.quota)))

    def __str__(self) -> str:
        parts = [f"{self.num_threads} of {self.num_cores} physical cores"]
        if self.num_usable_cores < self.num_cores:
            parts.append(f"affinity allows {self.num_usable_cores}")
        parts.append("quota none" if self.quota is None else f"quota {self.quota:g}")
        return "; ".join(parts)


def default_threads() -> ThreadCount:
    """For this process on this machine."""
    usable = os.sched_getaffinity(0)
    machine = range(os.cpu_count() or 1)
    return ThreadCount(max(count_cores(machine), count_cores(usable)), count_cores(usable), cgroup_quota())


def count_cores(cpus: Iterable[int], folder: Path = CPUS) -> int:
    """Physical cores that `cpus` lie on. A CPU whose siblings are not known counts as a core."""
    return len({_siblings(folder, cpu) for cpu in cpus})


def _siblings(folder: Path, cpu: int) -> str:
    """The CPUs of one core, as the kernel lists them: the same text for each of them."""
    try:
        return (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip() or str(cpu)
    except OSError:
        return str(cpu)


def cgroup_quota(root: Path = CGROUP, own: Path = OWN_CGROUPS) -> float | None:
    """CPUs' worth of time that the process's cgroup (version 1 or 2) and those around it allow; None: no limit."""
    quotas = [_quota(folder) for folder in _cgroup_folders(root, own)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _cgroup_folders(root: Path, own: Path) -> list[Path]:
    """Where limits may stand: the root, which in a container is its own, and the folders down to the process's."""
    folders = [root, root / "cpu"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = root / "cpu" if controllers else root
        for part in Path(path).parts[1:]:
            folder /= part
            folders.append(folder)
    return folders


def _quota(folder: Path) -> float | None:
    for quota, period in (("cpu.max", None), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = (folder / quota).read_text().split()
            words += (folder / period).read_text().split() if period else []
            micros, per = (int(word) for word in words)
        except (OSError, ValueError):  # of the other version, or "max"
            continue
        if micros > 0 and per > 0:
            return micros / per
    return None
