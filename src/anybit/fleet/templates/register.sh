#!/bin/sh
# Let the devices in: all public keys in keys/, or those given as arguments.
set -eu
cd "$(dirname "$0")"
. ./env.sh
[ $# -gt 0 ] || set -- keys/*.pub
for key in "$@"; do
  flwr supernode register "$key" fleet --name "$(basename "$key" .pub)"
done
