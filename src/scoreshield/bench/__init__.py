"""What reproduces the paper and measures: data sets, experiments, the RAG harness and result pages."""
