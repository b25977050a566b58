"""The HTTP API: everything that Python and the command can do, for any language."""

from lazaretto.web.access import Access, Grant, Identity, Proxies, Role
from lazaretto.web.app import web_app
from lazaretto.web.server import WebServer, open_web
from lazaretto.web.sign import Sign

__all__ = ["Access", "Grant", "Identity", "Proxies", "Role", "Sign", "WebServer", "open_web", "web_app"]
