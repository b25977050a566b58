"""Standard input, output and error of a command that was started without one of them, as with `>&-`."""

from __future__ import annotations

import os
import sys

# Input is opened for writing and output for reading, so that their use fails as it does for a closed file:
# nothing is sent as an empty body, and what nobody was shown is not settled. Errors have nowhere else to go.
_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def open_missing() -> None:
    """Open those that are closed, so that no other file takes their number, here or in a child."""
    for number, (name, access, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            os.dup2(opened, number)
            if opened == number:
                os.set_inheritable(number, True)
            else:
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
