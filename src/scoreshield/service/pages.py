"""Pages for people: Jinja2 templates, and a content security policy that allows only files of the service."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

#: What a page may load: files of the service, and no script or style within the page itself.
PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def make_page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Fill a template of ``service/templates``. Text is escaped, and a missing value is an error.

    The response brings the content security policy of pages, which the application keeps.
    """
    content = _open_templates().get_template(template).render(**values)
    return HTMLResponse(content, status, {"content-security-policy": PAGE_POLICY})


@cache
def _open_templates() -> Environment:
    return Environment(loader=PackageLoader("scoreshield.service"), autoescape=True, undefined=StrictUndefined)
