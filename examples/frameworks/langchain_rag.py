"""A LangChain pipeline, before and after one line makes its retrieval private.

The embedding model and the language model are stand-ins, so that nothing is downloaded.
Run it with: python examples/frameworks/langchain_rag.py
It needs: pip install '.[langchain]' in a checkout of this repository
"""

import re
import zlib

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListLLM
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from scoreshield.integrations.langchain import PrivateRetriever


class WordEmbeddings(Embeddings):
    """Each word is a random direction, and a text is the sum of its words."""

    def embed_query(self, text: str) -> list[float]:
        words = re.findall(r"\w+", text.lower())
        return sum(np.random.default_rng(zlib.crc32(word.encode())).standard_normal(64) for word in words).tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


topics = ["holiday", "salary", "parental leave", "remote work", "travel expenses", "sick leave", "training", "pension"]
documents = [
    Document(
        id=f"{topic}/{n}", page_content=f"Rule {n} about {topic}: {topic} is granted on request.", metadata={"n": n}
    )
    for topic in topics
    for n in range(25)
]
vectorstore = InMemoryVectorStore(WordEmbeddings())
vectorstore.add_documents(documents)


def answer(retriever) -> None:
    def context(found: list[Document]) -> str:
        return "\n".join(document.page_content for document in found)

    prompt = PromptTemplate.from_template("Answer from these rules:\n{context}\n\nQuestion: {question}")
    model = FakeListLLM(responses=["On request."])
    chain = {"context": retriever | context, "question": RunnablePassthrough()} | prompt | model
    print("  answer:", chain.invoke("Is parental leave granted?"))
    print("  from:", [document.id for document in retriever.invoke("Is parental leave granted?")])


print("before")
retriever = vectorstore.as_retriever(search_kwargs={"k": 4})
answer(retriever)

print("after")
retriever = PrivateRetriever.from_vectorstore(vectorstore, epsilon=40, k=4)  # the one line
answer(retriever)

for document, score in retriever.vectorstore.similarity_search_with_score("Is parental leave granted?", k=2):
    print(f"  {document.id}: released score {score:.2f}, {document.metadata['scoreshield']}")
print(retriever.vectorstore.guarantee)  # the certificate
