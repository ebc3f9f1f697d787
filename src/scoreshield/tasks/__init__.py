"""What people do with released scores: verify, classify, retrieve, cluster, compare with people, recommend.

Every function reads a release and public labels, never the collection, so what it returns is post-processing and costs
no privacy. A plain array is read as it is and carries no promise: that is how a non-private baseline is measured.
"""

from scoreshield.tasks.classification import knn_accuracy
from scoreshield.tasks.clustering import clustering_nmi, spectral_clustering
from scoreshield.tasks.correlation import sts_spearman
from scoreshield.tasks.recommendation import RatingTable, Recommendation, collaborative_filtering, user_vectors
from scoreshield.tasks.retrieval import (
    InstanceRetrieval,
    SearchMetrics,
    instance_retrieval,
    paper_top_k,
    ranked,
    search_metrics,
)
from scoreshield.tasks.verification import Verification, verification

__all__ = [
    "InstanceRetrieval",
    "RatingTable",
    "Recommendation",
    "SearchMetrics",
    "Verification",
    "clustering_nmi",
    "collaborative_filtering",
    "instance_retrieval",
    "knn_accuracy",
    "paper_top_k",
    "ranked",
    "search_metrics",
    "spectral_clustering",
    "sts_spearman",
    "user_vectors",
    "verification",
]
