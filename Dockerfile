# The command `tosaic`, for models in the folder that is mounted at /models.
FROM python:3.11-slim

COPY pyproject.toml README.md LICENSE constraints.txt /tosaic/
COPY src /tosaic/src
RUN pip install --no-cache-dir -c /tosaic/constraints.txt "/tosaic[vision]" && rm -r /tosaic

# A .py model is code: it does not run as root.
RUN useradd --create-home tosaic
USER tosaic
WORKDIR /models
ENTRYPOINT ["tosaic"]
CMD ["--help"]
