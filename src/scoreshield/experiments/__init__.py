"""The evidence: experiments that anyone can run again, on a grid, with the guarantee of every value beside it."""

from __future__ import annotations

from scoreshield.experiments.cells import Experiment
from scoreshield.experiments.face import FaceVerification
from scoreshield.experiments.gram import CollaborativeFiltering, ImageSimilarity, SentenceSimilarity
from scoreshield.experiments.rag import RetrievalForGeneration
from scoreshield.experiments.runner import run
from scoreshield.experiments.speed import Noise, Runtime

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        FaceVerification(),
        RetrievalForGeneration(),
        SentenceSimilarity(),
        CollaborativeFiltering(),
        ImageSimilarity(),
        Runtime(),
        Noise(),
    )
}

__all__ = ["EXPERIMENTS", "Experiment", "run"]
