"""The HTTP API: everything that Python and the command can do, for any language."""

from lazaretto.web.access import Access, Grant, Identity, Proxies, Role
from lazaretto.web.app import web_app
from lazaretto.web.page_options import PageOptions
from lazaretto.web.server import OtherStore, WebServer, open_web

__all__ = [
    "Access",
    "Grant",
    "Identity",
    "OtherStore",
    "PageOptions",
    "Proxies",
    "Role",
    "WebServer",
    "open_web",
    "web_app",
]
