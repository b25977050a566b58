"""The public names of the package, for type checkers: they are loaded when one is asked for."""

from lazaretto.api import *  # noqa: F403
from lazaretto.api import __all__ as __all__

__version__: str
