"""Pages of torch's debug server that know taco groups (torch 2.15 on)::

    from torch.distributed.debug import start_debug_server
    from taco_torch.debug import handlers

    start_debug_server(handlers=handlers())

``/taco_groups`` says which ranks are missing and what the others wait for. All of torch's own pages
are there, too; ``/fr_trace`` shows taco's operations, as it shows gloo's otherwise. torch's server
needs the packages jinja2, tabulate, and aiohttp or requests.
"""

import json
from typing import Any

from torch.distributed.debug import _debug_handlers as pages
from torch.distributed.debug import _handlers as torch_handlers
from torch.distributed.debug._frontend import (
    DebugHandler,
    NavLink,
    Route,
    fetch_all,
    format_fetch_summary,
)

from taco_torch.group_reports import HANDLER, Answer, describe, keep_for_good

# The handler that torch's own pages register has the fault that keep_for_good() speaks of.
if (_torch_handler := getattr(torch_handlers, "_torch_profile", None)) is not None:
    keep_for_good(_torch_handler)

_TEMPLATE = """
{% extends "base.html" %}
{% block header %}
    <h1>{% block title %}taco groups{% endblock %}</h1>
{% endblock %}
{% block content %}
    <pre>{{ text }}</pre>
{% endblock %}
"""


class GroupsPage(DebugHandler):
    """Every taco group of the job: which ranks are missing, what the others wait for."""

    def routes(self) -> list[Route]:
        return [Route(f"/{HANDLER}", self._page)]

    def nav_links(self) -> list[NavLink]:
        return [NavLink(f"/{HANDLER}", "taco groups")]

    def templates(self) -> dict[str, str]:
        return {f"{HANDLER}.html": _TEMPLATE}

    def dump(self) -> str:
        _, responses = fetch_all(HANDLER, timeout=self.fetch_timeout)
        return describe([_answer_of(response) for response in responses])

    def dump_filename(self) -> str:
        return HANDLER

    def _page(self, request: Any) -> bytes:
        page: bytes = request.frontend.render_template(f"{HANDLER}.html", text=self.dump())
        return page


class FlightRecorderPages(pages.FlightRecorderHandler):
    """torch's, which show gloo's operations unless the address names another backend."""

    default_backend = "taco"

    def dump(self) -> str:
        addresses, responses = fetch_all(
            "fr_trace_json", "backend=taco", timeout=self.fetch_timeout
        )
        found = self._build_db(addresses, list(responses))
        parts = [format_fetch_summary(addresses, list(responses)) or "", "=== FR Trace taco ==="]
        for title, rows in (
            ("Groups", found.groups),
            ("Memberships", found.memberships),
            ("Collectives", found.collectives),
            ("Calls", found.ncclcalls),
        ):
            parts += [f"--- {title} ---", *map(str, rows)]
        return "\n".join(parts)


def _answer_of(response: Any) -> Answer:
    if response.status_code != 200:
        return Answer(silence=str(response.text))
    return Answer(json.loads(response.text))


def handlers() -> list[DebugHandler]:
    """All of torch's pages, and taco's: what ``start_debug_server(handlers=...)`` takes."""
    default = pages.default_handlers()
    others = [page for page in default if not isinstance(page, pages.FlightRecorderHandler)]
    return [*others[:1], GroupsPage(), FlightRecorderPages(), *others[1:]]
