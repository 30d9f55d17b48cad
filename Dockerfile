# syntax=docker/dockerfile:1
# Two images from one file:  docker build --target cpu -t ebbtide:cpu .   and   --target cuda -t ebbtide:cuda .
# Building happens in a virtual environment at /opt/ebbtide, which is all that the images take over.

FROM python:3.11-slim-bookworm AS source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
# Both ends of the five links: ebbtide/server is a link to ../server, and so on.
COPY server server
COPY scheduler scheduler
COPY model_runner model_runner
COPY tokenizer_mgr tokenizer_mgr
COPY detokenizer detokenizer
COPY ebbtide ebbtide
RUN python -m venv /opt/ebbtide && /opt/ebbtide/bin/pip install -c constraints.txt setuptools wheel

FROM source AS build-cpu
# The same pin of torch is a CUDA build of several GB on the default index; this index has the CPU build.
ARG CPU_WHEELS=https://download.pytorch.org/whl/cpu
RUN /opt/ebbtide/bin/pip install --no-build-isolation -c constraints.txt --extra-index-url "$CPU_WHEELS" .

FROM source AS build-cuda
RUN /opt/ebbtide/bin/pip install --no-build-isolation -c constraints.txt .

FROM python:3.11-slim-bookworm AS runtime
# Models are kept in the volume: the packaged one under /cache/smollm2, those of the Hub under /cache/huggingface.
ENV PATH=/opt/ebbtide/bin:$PATH PYTHONUNBUFFERED=1 EBBTIDE_CACHE=/cache HF_HOME=/cache/huggingface
# Kernels are compiled for the machine they run on, when they first run: C++ ones on the CPU, Triton's launchers on CUDA.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 ebbtide \
    && mkdir /cache \
    && chown ebbtide:ebbtide /cache
USER 10001
WORKDIR /home/ebbtide
VOLUME /cache
EXPOSE 8000
# /health says that the processes live; whether the model is loaded yet is for /ready to say.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["ebbtide", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["smollm2"]

FROM runtime AS cpu
COPY --from=build-cpu /opt/ebbtide /opt/ebbtide

FROM runtime AS cuda
COPY --from=build-cuda /opt/ebbtide /opt/ebbtide
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
