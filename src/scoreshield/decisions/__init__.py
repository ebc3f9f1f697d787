"""How noise changes decisions by a threshold: flips, rates, thresholds, curves and recall."""

from scoreshield.decisions.curves import Roc, roc
from scoreshield.decisions.queries import Prediction, QueryScores
from scoreshield.decisions.rates import (
    ENDPOINTS,
    Endpoint,
    Recalibration,
    cosine_threshold,
    critical_scale,
    endpoint_limit,
    epsilon_for_scale,
    euclidean_threshold,
    false_match_gap,
    false_match_rate,
    flip_probability,
    lipschitz_bounds,
    mills_bound,
    minimum_epsilon,
    recalibrate,
)
from scoreshield.decisions.recall import recall_at_k, recall_of_queries
from scoreshield.decisions.scores import BINNING_ERROR, Distribution, Sample

__all__ = [
    "BINNING_ERROR",
    "ENDPOINTS",
    "Distribution",
    "Endpoint",
    "Prediction",
    "QueryScores",
    "Recalibration",
    "Roc",
    "Sample",
    "cosine_threshold",
    "critical_scale",
    "endpoint_limit",
    "epsilon_for_scale",
    "euclidean_threshold",
    "false_match_gap",
    "false_match_rate",
    "flip_probability",
    "lipschitz_bounds",
    "mills_bound",
    "minimum_epsilon",
    "recalibrate",
    "recall_at_k",
    "recall_of_queries",
    "roc",
]
