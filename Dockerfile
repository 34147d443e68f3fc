# syntax=docker/dockerfile:1
# One image for every service; which one a container is, its command says: see compose.yaml.
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# The packages first: they change seldom, and are most of the image.
COPY requirements.lock ./
RUN pip install -r requirements.lock

COPY . .
RUN pip install --no-deps --no-build-isolation --editable .

# A volume mounted at /runs takes over its owner.
RUN useradd --uid 1000 swingshift && mkdir /runs && chown swingshift /runs
USER swingshift

ENTRYPOINT ["swingshift"]
CMD ["--help"]
