"""How much memory this process holds and has held (Linux only)."""

from __future__ import annotations

from pathlib import Path


def peak_memory() -> int:
    """Bytes this process has held at most. (`ru_maxrss` would count the parent that started it.)"""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def current_memory() -> int:
    """Bytes this process holds now."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def reset_peak_memory() -> None:
    """Start the peak anew from what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
