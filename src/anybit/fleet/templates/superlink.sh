#!/bin/sh
# The server of the fleet, until Ctrl-C. state.db keeps who is registered over a restart.
set -eu
cd "$(dirname "$0")"
. ./env.sh
exec flower-superlink --host {bind} --port {port} --ssl-certfile certificates/server.crt \
  --ssl-keyfile certificates/server.key --ssl-ca-certfile certificates/ca.crt --enable-supernode-auth \
  --database state.db --disable-runtime-dependency-installation
