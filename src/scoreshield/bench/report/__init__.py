"""The pages, tables and figures of the experiments' results."""
