"""The routes of the API, one module a subject. Importing it fills the table of routes, in this order."""

# isort: off
from lazaretto.web.api import messages
from lazaretto.web.api import audit, dead_letters, entities, standing
# isort: on

#: Routes are tried in this order, so what is asked for most comes first.
MODULES = (messages, entities, dead_letters, standing, audit)
