#!/bin/sh
# The server of the fleet, until Ctrl-C. state.db keeps who is registered over a restart.
# Whoever reaches the SuperLink's port runs code here and on every device: it stays on this machine. Devices reach the gate,
# which passes their own requests, with keys in devices.toml, and answers of at most so many MB.
set -eu
cd "$(dirname "$0")"
. ./env.sh
exec anybit fleet gate . --host {bind} --port {port} --control-port {control} --answer-mb 64 -- \
  flower-superlink --host 127.0.0.1 --port {control} --ssl-certfile certificates/server.crt \
  --ssl-keyfile certificates/server.key --ssl-ca-certfile certificates/ca.crt --enable-supernode-auth \
  --database state.db --disable-runtime-dependency-installation
