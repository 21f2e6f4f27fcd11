#!/usr/bin/env bash
# Make externalscaler_pb2*.py from externalscaler.proto, with the oldest tools that pyproject.toml allows: generated
# code runs on its own version of protobuf and grpcio and on every newer one, never on an older one.
set -euo pipefail

GRPCIO_TOOLS=1.71.0  # carries protobuf 5.29

cd "$(dirname "$0")/../../../.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet "grpcio-tools==$GRPCIO_TOOLS"
"$tools/bin/python" -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
  autoscaler/adapters/keda/proto/externalscaler.proto
for file in externalscaler_pb2_grpc.py externalscaler_pb2.pyi; do
  sed -i '1i # mypy: ignore-errors' "autoscaler/adapters/keda/proto/$file"
done
