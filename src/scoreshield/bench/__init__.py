"""What reproduces the paper and measures the library: data sets, experiments, DP-RAG and result pages."""

from importlib.util import find_spec

from scoreshield.errors import InvalidInput

if find_spec("pydantic") is None:
    raise InvalidInput("The benchmarks need the 'bench' extra: pip install 'scoreshield[bench]'.")
