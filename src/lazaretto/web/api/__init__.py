"""The routes of the API, one module a resource. Importing it fills the table of routes."""

from lazaretto.web.api import messages  # isort: skip
from lazaretto.web.api import (
    audit,
    causes,
    changes,
    dead_letters,
    dialogs,
    entities,
    events,
    metrics,
    people,
    repairs,
    standing,
)

#: Routes are tried in this order, so what is asked for most comes first.
MODULES = (
    messages, entities, dead_letters, causes, repairs, standing, audit, dialogs, events, changes,
    metrics, people,
)  # fmt: skip
