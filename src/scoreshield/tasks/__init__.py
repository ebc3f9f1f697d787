"""Tasks on released scores: verification, classification, retrieval, clustering, correlation, recommendation.

Every function reads a release and public labels, never the collection. So its result is post-processing and costs
no privacy. A plain array is read as it is and carries no promise; use it for a non-private baseline.
"""

from scoreshield.tasks.agreement import clustering_nmi, knn_accuracy, spectral_clustering, sts_spearman
from scoreshield.tasks.recommendation import RatingTable, Recommendation, collaborative_filtering, user_vectors
from scoreshield.tasks.retrieval import (
    InstanceRetrieval,
    SearchMetrics,
    instance_retrieval,
    paper_top_k,
    rank_records,
    search_metrics,
)
from scoreshield.tasks.verification import Verification, evaluate_verification

__all__ = [
    "InstanceRetrieval",
    "RatingTable",
    "Recommendation",
    "SearchMetrics",
    "Verification",
    "clustering_nmi",
    "collaborative_filtering",
    "evaluate_verification",
    "instance_retrieval",
    "knn_accuracy",
    "paper_top_k",
    "rank_records",
    "search_metrics",
    "spectral_clustering",
    "sts_spearman",
    "user_vectors",
]


def __dir__() -> list[str]:
    return list(__all__)
