"""Retrieval-augmented generation, measured: chunks, prompts, a chat model, answers."""
