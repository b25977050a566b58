"""The routes of the API, one module a resource. Importing it fills the table of routes."""

from lazaretto.web.api import causes, dead_letters, entities, events, messages, repairs, standing

MODULES = (standing, entities, messages, dead_letters, causes, repairs, events)
