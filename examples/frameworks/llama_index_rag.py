"""A LlamaIndex query engine over private notes: one line changes. Nothing is downloaded.

Run it with: python examples/frameworks/llama_index_rag.py
It needs: pip install '.[llama-index]' in a checkout of this repository
"""

import hashlib

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from scoreshield.integrations.llama_index import PrivateRetriever

NOTES = [
    "The patient reports pain in the left knee after running.",
    "The patient sleeps badly and drinks six cups of coffee a day.",
    "Blood pressure is high; the patient was told to eat less salt.",
    "The patient has asked for a second opinion on the knee.",
    "A rash on both hands, after work with cleaning agents.",
    "The patient is afraid of flying and asks for something to calm down.",
]


class WordEmbedding(BaseEmbedding):
    """Stands for a real model: each word is a fixed random direction, a text is their sum."""

    def _get_text_embedding(self, text: str) -> list[float]:
        seeds = [int.from_bytes(hashlib.sha256(w.strip(".,;?").encode()).digest()[:4]) for w in text.lower().split()]
        return np.sum([np.random.default_rng(seed).standard_normal(32) for seed in seeds], axis=0).tolist()

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


index = VectorStoreIndex([TextNode(text=note) for note in NOTES], embed_model=WordEmbedding())

# Before: retriever = index.as_retriever(similarity_top_k=2)
retriever = PrivateRetriever.from_index(index, epsilon=40, similarity_top_k=2)

for found in retriever.retrieve("pain in the knee"):
    print(f"{found.score:+.2f}  {found.node.get_content()}")
print(found.node.metadata["scoreshield"])

engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM(max_tokens=30))
print(engine.query("Who has pain in the knee?"))
