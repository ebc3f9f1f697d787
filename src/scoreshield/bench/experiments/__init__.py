"""Experiments on a grid that anyone can repeat. Every value has its guarantee."""

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
