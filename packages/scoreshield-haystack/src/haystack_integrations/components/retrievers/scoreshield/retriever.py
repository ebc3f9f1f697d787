"""The private retriever under the path of Haystack's integrations."""

from __future__ import annotations

from haystack import component

from scoreshield.integrations import haystack as _haystack


@component
class PrivateRetriever(_haystack.PrivateRetriever):
    """`scoreshield.integrations.haystack.PrivateRetriever`, under a path that Haystack loads by default.

    A pipeline is written with the path of its components. Haystack loads classes from ``haystack_integrations`` without
    ``allowed_modules``.
    """
