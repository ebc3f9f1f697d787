"""The evidence: experiments that anyone can run again, on a grid, with the guarantee of every value beside it."""

from __future__ import annotations

from scoreshield.bench.experiments.cells import Experiment
from scoreshield.bench.experiments.face import FaceVerification
from scoreshield.bench.experiments.gram import CollaborativeFiltering, ImageSimilarity, SentenceSimilarity
from scoreshield.bench.experiments.rag import RetrievalForGeneration
from scoreshield.bench.experiments.runner import run_experiment
from scoreshield.bench.experiments.speed import NoiseLaws, Runtime

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        FaceVerification(),
        RetrievalForGeneration(),
        SentenceSimilarity(),
        CollaborativeFiltering(),
        ImageSimilarity(),
        Runtime(),
        NoiseLaws(),
    )
}

__all__ = ["EXPERIMENTS", "Experiment", "run_experiment"]
