# Three images from one file: `docker build --target draft|target|orchestrator -t specdec-NAME:VERSION .`
#
# On x86-64 PyPI's torch brings CUDA, several GB of it. For CPUs only:
#   --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# No image holds a target's weights: a service fetches its model into SPECDEC_CACHE, or is given a directory that is
# mounted. The small draft of the embedded target comes with the code.
# A tag can be moved, a digest not; the digest is another one for each processor or the index of them all, and is to be looked up
# where the registry can be reached (`docker buildx imagetools inspect`): --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY specdec specdec
COPY draft_service draft_service
COPY target_service target_service
COPY orchestrator orchestrator
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS environment
RUN python -m venv /opt/specdec
ENV PATH=/opt/specdec/bin:$PATH
WORKDIR /source
COPY constraints.txt ./

FROM environment AS base-environment
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --only-binary :all: -c constraints.txt /wheels/*.whl

FROM environment AS models-environment
ARG PIP_EXTRA_INDEX_URL
# The large one goes first, in a layer that a change of the source leaves alone.
RUN pip install --no-cache-dir --only-binary :all: -c constraints.txt torch
COPY --from=wheel /wheels /wheels
RUN wheel=$(echo /wheels/*.whl) && pip install --no-cache-dir --only-binary :all: -c constraints.txt "${wheel}[models]"

FROM ${PYTHON_IMAGE} AS runtime
RUN useradd --uid 65532 --create-home --shell /usr/sbin/nologin specdec
ENV PATH=/opt/specdec/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=${TMPDIR:-/tmp}/numba
WORKDIR /home/specdec
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532

# Kubernetes has probes of its own and passes HEALTHCHECK over; other engines use it.
FROM runtime AS draft
COPY --from=models-environment /opt/specdec /opt/specdec
EXPOSE 50051
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=6 CMD ["python", "-m", "specdec.serving.probe", "draft"]
ENTRYPOINT ["python", "-m", "draft_service"]

FROM runtime AS target
COPY --from=models-environment /opt/specdec /opt/specdec
EXPOSE 50052
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=6 CMD ["python", "-m", "specdec.serving.probe", "target"]
ENTRYPOINT ["python", "-m", "target_service"]

FROM runtime AS orchestrator
COPY --from=base-environment /opt/specdec /opt/specdec
EXPOSE 50050
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=6 CMD ["python", "-m", "specdec.serving.probe", "orchestrator"]
ENTRYPOINT ["python", "-m", "orchestrator"]
