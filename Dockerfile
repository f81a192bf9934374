# Two images: a CPU, and one GPU (the default).
#   docker build --target cpu -t egpo:cpu .    docker run --rm egpo:cpu demo --fast
#   docker build --target gpu -t egpo:gpu .    docker run --rm --gpus all -v "$PWD:/work" egpo:gpu train countdown_tiny
# Linted with hadolint. Not built or run here: there is no Docker on the machine on which this project is tested. The
# commands of the stages are those of docs/installation.md, which are tested.
# Code rewards need bubblewrap to make namespaces: docker run --security-opt seccomp=unconfined ... (docs/sandbox.md).

FROM python:3.12-slim-bookworm AS base
# gcc compiles the kernels for the CPU at their first use.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap=0.8.* gcc=4:12.* libc6-dev=2.36-* \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS wheel
WORKDIR /source
COPY . .
RUN pip install build==1.* && python -m build --wheel --outdir /dist

FROM base AS cpu
# A CPU build of torch: 0.8 GB instead of 4.6 GB.
RUN pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY --from=wheel /dist /dist
RUN pip install /dist/*.whl && useradd --uid 1000 --create-home egpo
USER 1000
WORKDIR /work
ENTRYPOINT ["egpo"]

FROM base AS gpu
# PyPI's torch for Linux is the CUDA build, with CUDA's libraries. The driver is that of the host.
RUN pip install torch==2.13.0
COPY --from=wheel /dist /dist
RUN pip install /dist/*.whl && useradd --uid 1000 --create-home egpo
USER 1000
WORKDIR /work
ENTRYPOINT ["egpo"]
