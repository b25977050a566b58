"""What tells the pages of one server from those of another: a name and a colour."""

from __future__ import annotations

import dataclasses
from typing import Final

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown, suggestion

#: Each has its own class in the style sheet, with a contrast for light and dark.
COLOURS: Final = ("blue", "green", "grey", "orange", "purple", "red")
_LONGEST: Final = 30


@dataclasses.dataclass(frozen=True, slots=True)
class Sign:
    """What every page shows beside the product's name. Raises InvalidOption.

    `name`: such as "prod", up to 30 characters; "": none. `colour`: one of COLOURS.
    """

    name: str = ""
    colour: str = "grey"

    def __post_init__(self) -> None:
        if len(self.name) > _LONGEST or not self.name.isprintable():
            raise InvalidOption(f"expected a name of at most {_LONGEST} characters, got {shown(self.name)}")
        if self.colour not in COLOURS:
            raise InvalidOption(f"unknown colour {shown(self.colour)}{suggestion(self.colour, COLOURS)}")
