#!/bin/sh
# One device of the fleet, until Ctrl-C. It needs this folder, anybit and its extra 'flower', and nothing else.
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
exec flower-supernode --superlink {host}:{port} --port {own_port} --root-certificates ca.crt \
  --auth-supernode-private-key key --node-config "$(cat node-config)"
