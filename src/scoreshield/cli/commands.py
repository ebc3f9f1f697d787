"""The commands: where each is defined, and the line that ``scoreshield --help`` shows for it.

This module imports nothing, so that the help of the whole command line is there at once.
"""

from __future__ import annotations

#: What the command line is for.
SUMMARY = "Release cosine similarities under differential privacy, with a certificate."
#: The last line of the help.
START = "Start with: scoreshield demo (first: pip install 'scoreshield[demo]')"

#: The commands in groups, as the help shows them: for each its module, its name there, and one line about it.
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Release and search": {
        "release": ("release", "app", "Release scores, matches, a batch, an index, ... with a certificate."),
        "search": ("search", "search_command", "Search a released index: the best records and their scores. Free."),
        "hits": ("hits", "hits_command", "Name the records near a query, with a few true answers of each."),
        "export": ("export", "export_index_command", "Write a released index for FAISS, Parquet or Lance."),
        "serve": ("serve", "app", "Serve private collections over HTTP, within a budget."),
        "public": ("public", "app", "Prepare a release with public data. This costs no budget."),
    },
    "Look and check": {
        "show": ("show", "show_command", "Say what a file is, and print its certificate and verdict."),
        "verify": ("verify", "verify_file_command", "Check a file, its certificate and its ledger entry."),
        "ledger": ("ledger", "app", "Keep the privacy budget of a collection."),
        "audit": ("audit", "run_audit_command", "Attack a release, and bound from below what it leaks."),
        "doctor": ("doctor", "doctor_command", "Say what is installed, what is missing, and how to install it."),
    },
    "Plan": {
        "plan": ("plan", "plan_command", "Find the best mechanism for a need, and what it keeps."),
        "calibrate": ("calibrate", "calibrate_command", "Compute the least Gaussian noise for a contract."),
        "demo": ("demo", "demo_command", "Search public images privately, offline: a picture and certificates."),
    },
    "Research": {
        "bench": ("bench", "bench_command", "Run one experiment over a grid."),
        "rag": ("rag", "rag_command", "Measure private retrieval for questions, and the answers."),
        "report": ("report", "app", "Make the results page, and the figures of the paper."),
    },
}
