"""Data sets with a public truth, where to get them, and what makes embeddings of them.

`compact` reads small ready-made sets of embeddings from a folder; `images`, `text`, `ratings` and `faces` read the
official files; `embedders` turns items into embeddings.
"""
