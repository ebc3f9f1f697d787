"""A Haystack pipeline over private notes: one line changes. Nothing is downloaded.

Run it with: python examples/frameworks/haystack_pipeline.py
It needs: pip install '.[haystack]' in a checkout of this repository
"""

import hashlib
import os

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")

import numpy as np
from haystack import Document, Pipeline, component
from haystack.components.builders import PromptBuilder
from haystack.document_stores.in_memory import InMemoryDocumentStore

from scoreshield.integrations.haystack import PrivateRetriever

NOTES = [
    "The patient reports pain in the left knee after running.",
    "The patient sleeps badly and drinks six cups of coffee a day.",
    "Blood pressure is high; the patient was told to eat less salt.",
    "The patient has asked for a second opinion on the knee.",
    "A rash on both hands, after work with cleaning agents.",
    "The patient is afraid of flying and asks for something to calm down.",
]


def embed(text: str) -> list[float]:
    """Stands for a real model: each word is a fixed random direction, a text is their sum."""
    seeds = [int.from_bytes(hashlib.sha256(w.strip(".,;?").encode()).digest()[:4]) for w in text.lower().split()]
    return np.sum([np.random.default_rng(seed).standard_normal(32) for seed in seeds], axis=0).tolist()


@component
class Embedder:
    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        return {"embedding": embed(text)}


store = InMemoryDocumentStore()
store.write_documents([Document(id=f"note-{i}", content=note, embedding=embed(note)) for i, note in enumerate(NOTES)])

# Before: retriever = InMemoryEmbeddingRetriever(store, top_k=2)
retriever = PrivateRetriever(store, epsilon=40, top_k=2)

template = (
    "Answer from these notes:{% for one in documents %}\n- {{ one.content }}{% endfor %}\nQuestion: {{ question }}"
)
pipeline = Pipeline()
pipeline.add_component("embedder", Embedder())
pipeline.add_component("retriever", retriever)
pipeline.add_component("prompt", PromptBuilder(template, required_variables=["documents", "question"]))
pipeline.connect("embedder.embedding", "retriever.query_embedding")
pipeline.connect("retriever.documents", "prompt.documents")

question = "Who has pain in the knee?"
result = pipeline.run(
    {"embedder": {"text": question}, "prompt": {"question": question}}, include_outputs_from={"retriever"}
)
for found in result["retriever"]["documents"]:
    print(f"{found.score:+.2f}  {found.content}")
print(found.meta["scoreshield"])
print(result["prompt"]["prompt"])
