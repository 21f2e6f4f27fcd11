#!/usr/bin/env bash
# State in requirements/ which version of each package is installed, with the hashes of its files.
#
#   run.txt      the daemon, what fetches weights, and the webhook
#   dev.txt      the daemon, its tests and checks
#   build.txt    what turns the sources into a wheel
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
    --no-header --no-annotate --no-emit-index-url --output-file "requirements/$1.txt" "${@:2}"
}

compile dev --extra dev pyproject.toml
compile run --extra weights --extra webhook --constraints requirements/dev.txt pyproject.toml
compile build --constraints requirements/dev.txt - <<<setuptools
