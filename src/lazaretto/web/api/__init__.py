"""The routes of the API, one module a subject. Importing it fills the table of routes."""

from lazaretto.web.api import messages  # isort: skip
from lazaretto.web.api import audit, dead_letters, entities, standing

#: Routes are tried in this order, so what is asked for most comes first.
MODULES = (messages, entities, dead_letters, standing, audit)
