"""What reproduces the paper and measures the library: data sets, experiments, DP-RAG and result pages."""

from importlib.util import find_spec

from scoreshield.errors import InvalidInput

if any(find_spec(name) is None for name in ("pandas", "pydantic")):  # the core install may bring the second
    raise InvalidInput("The benchmarks need the 'bench' extra: pip install 'scoreshield[bench]'.")
