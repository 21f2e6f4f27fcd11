# The image of the daemon: Python, the package and its dependencies, nothing that builds.
# It runs as any non-root user and needs no writable path.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements requirements
# Every dependency comes as a wheel, so no compiler is needed here either; --only-binary makes that a rule. Versions and
# hashes are stated; the wheel of the package itself is built by a setuptools that is stated too.
RUN python -m venv --without-pip /opt/vllm-autoscaler \
 && pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt \
 && pip --python /opt/vllm-autoscaler/bin/python install --no-cache-dir --require-hashes --only-binary :all: -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY autoscaler autoscaler
RUN pip --python /opt/vllm-autoscaler/bin/python install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON}
LABEL org.opencontainers.image.title="vllm-autoscaler" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/vllm-autoscaler /opt/vllm-autoscaler
ENV PATH=/opt/vllm-autoscaler/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
# 8080 health, metrics, API and page; 6000 gRPC for KEDA
EXPOSE 8080 6000
ENTRYPOINT ["vllm-autoscaler"]
CMD ["run"]
