"""Pages and figures of releases, plans and audits, for people."""

from scoreshield.report.certificate_page import render_certificate_page, save_certificate_page

__all__ = ["render_certificate_page", "save_certificate_page"]
