# syntax=docker/dockerfile:1
# The command line as an image: `docker run --rm scoreshield:local --help`. docs/container.md shows its use.
# The digest is the one that docker-library/repo-info published for python:3.13-slim-trixie on 5 August 2026.
FROM python:3.13.14-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build
ENV UV_PROJECT_ENVIRONMENT=/opt/scoreshield UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
WORKDIR /build
RUN pip install --no-cache-dir uv==0.13.7
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY src src
# Exactly the versions of uv.lock, each compared with its hash.
RUN uv sync --frozen --no-dev --no-editable --no-cache --compile-bytecode \
    --extra demo --extra parquet --extra postgres --extra service --extra traces

FROM python:3.13.14-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
LABEL org.opencontainers.image.title="ScoreShield" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Similarity scores under differential privacy, with a certificate"
COPY --from=build /opt/scoreshield /opt/scoreshield
# The root is read-only at run time: caches go to /tmp, files of the user to /data.
ENV PATH=/opt/scoreshield/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp PYTHONDONTWRITEBYTECODE=1
WORKDIR /data
USER 10001:10001
ENTRYPOINT ["scoreshield"]
CMD ["--help"]
