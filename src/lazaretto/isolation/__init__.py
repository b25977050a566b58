"""Isolation: runs a function over items in another process; a failing item affects only itself.

Independent of queues: items and results are bytes.
"""

from lazaretto.isolation.columns import Blobs, Columns, Nullable, Repeated
from lazaretto.isolation.sandbox import Sandbox
from lazaretto.isolation.verdict import DONE, FailedResult, SandboxOptions, Status, Verdict

__all__ = [
    "DONE",
    "Blobs",
    "Columns",
    "FailedResult",
    "Nullable",
    "Repeated",
    "Sandbox",
    "SandboxOptions",
    "Status",
    "Verdict",
]
