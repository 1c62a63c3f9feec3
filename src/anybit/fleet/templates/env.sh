# No telemetry, no update check, no installing of packages at run time; Flower's own files stay in this folder.
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
# These would open the control API on a port of its own, to everybody.
unset FLWR_INTERNAL_GRPC_CONTROL_API FLWR_INTERNAL_GRPC_FLEET_API
# Flower wants absolute paths; this folder may move.
mkdir -p flower
sed "s|HERE|$PWD|" connections.toml > "flower/config.$$" && mv "flower/config.$$" flower/config.toml
