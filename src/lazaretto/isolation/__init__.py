"""Isolation: a function runs over items in another process; an item fails, and nothing else does.

Knows nothing of queues: items and results are bytes.
"""

from lazaretto.isolation.sandbox import Sandbox
from lazaretto.isolation.sandbox_options import SandboxOptions
from lazaretto.isolation.verdict import Status, Verdict

__all__ = ["Sandbox", "SandboxOptions", "Status", "Verdict"]
