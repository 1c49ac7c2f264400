"""Which processes work for this one. For tests only."""

from __future__ import annotations

import psutil


def working_processes() -> list[psutil.Process]:
    """Those that do tasks: forks of the one that has done the imports, or processes that were started anew."""
    this = psutil.Process()
    servers, found = set(), []
    for child in this.children(recursive=True):
        try:
            words = " ".join(child.cmdline())
            if child.ppid() == this.pid and "forkserver" in words:
                servers.add(child.pid)
            elif child.ppid() in servers or "spawn_main" in words:
                found.append(child)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found
