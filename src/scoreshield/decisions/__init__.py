"""How noise changes decisions by a threshold: flips, rates, thresholds, curves and recall."""

from scoreshield.decisions.curves import Roc, roc
from scoreshield.decisions.queries import Prediction, QueryScores
from scoreshield.decisions.ranking import RankingChoice, choose_for_ranking
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
from scoreshield.decisions.worth import Worth, predict_worth

__all__ = [
    "BINNING_ERROR",
    "ENDPOINTS",
    "Distribution",
    "Endpoint",
    "Prediction",
    "QueryScores",
    "RankingChoice",
    "Recalibration",
    "Roc",
    "Sample",
    "Worth",
    "choose_for_ranking",
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
    "predict_worth",
    "recalibrate",
    "recall_at_k",
    "recall_of_queries",
    "roc",
]


def __dir__() -> list[str]:
    return list(__all__)
