"""The details of a guarantee as sentences for a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What a certificate says for each detail. Others are shown by their names.
_LABELS = {
    # an index
    "score_std": "Standard deviation of the noise on a score",
    "center_share": "Share of the budget for the center",
    "center_sensitivity": "Sensitivity of the sum of the unit records, for the center",
    "center_std": "Standard deviation of the noise on that sum",
    "center_fingerprint": "SHA-256 of the center",
    "pca_share": "Share of the budget for the covariance",
    "covariance_sensitivity": "Sensitivity of the covariance",
    "covariance_std": "Standard deviation of the noise on the covariance",
    "cap_probability": "Probability of a direction in the cap around the vector",
    "cap_height": "Least cosine of the cap's directions with the vector",
    "shrinkage": "Mean cosine of the drawn direction with the vector",
    "epsilon_per_draw": "Epsilon of one draw of a record",
    "largest_draws": "Draws of the record that was drawn most often",
    # a custom law
    "law": "Name of the law, as given",
    "profile_from": "Source of the privacy profile",
    # a codebook
    "source": "Source of the codebook",
    "fingerprint": "SHA-256 of the codebook",
    "codewords": "Codewords in the codebook",
    "code_size": "Codewords in a code",
    "true_code_probability": "Probability that a record's code is its true one",
    # a batch
    "queries": "Queries in the batch",
    "names_per_record": "Queries that a record names",
    "levels": "Score levels",
    "cuts": "Lower edges of the levels",
    "cuts_from": "Source of these edges",
    "symbols": "Possible symbols",
    "truth": "Probability that a record sends its true symbol",
    "false_names": "Expected records that name a given query by chance, at most",
    # anchored windows
    "anchor_epsilon": "Epsilon of the quantile",
    "window_epsilon": "Epsilon of the windows",
    "anchor_rank": "Rank of the quantile",
    "offset": "Distance of the top of the scale from the quantile",
    "window_width": "Width of a window in scores",
    "cells": "Cells of the scale",
    "window": "Cells of a window",
    "k": "Best records that the windows are chosen for",
    "predicted_recall": "Share of them that a ranking keeps, predicted for the public scores of the tail",
    "tail_shape": "Source of the shape of the tail of the scores",
    # a hit budget
    "hits": "Hits of each record, at most",
    "hit_epsilon": "Epsilon of one hit",
    "miss_epsilon": "Epsilon of the miss",
    "true_name_probability": "Probability that a record of the asked level is named, while it has hits left",
    "false_name_probability": "Probability that any other record is named",
    # top-k, matches
    "epsilon_for_each": "Epsilon of each selection",
    "screening_epsilon": "Epsilon of the screening",
    "refining_epsilon": "Epsilon of the released scores",
}
_BOTTOM = {
    True: "A record whose best score is below the lowest edge names no query.",
    False: "The lowest level also holds all scores below its edge.",
}


def describe_details(details: Mapping[str, Any]) -> list[str]:
    """Describe each detail of a guarantee in a sentence, except those that other parts of a certificate state."""
    stated = {"share", "null_epsilon", "replacement_epsilon"}  # elsewhere, rounded up
    if "epsilon_per_draw" in details:  # the cost of one draw; the promise is about all draws of a record
        stated.add("epsilon_per_record")
    return [_describe(name, value) for name, value in details.items() if name not in stated]


def _describe(name: str, value: Any) -> str:
    if name == "has_bottom":
        return _BOTTOM[bool(value)]
    shown = f"{value:g}" if isinstance(value, float) else str(value).rstrip(".")
    return f"{_LABELS.get(name, name.replace('_', ' ').capitalize())}: {shown}."
