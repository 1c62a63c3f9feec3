#!/bin/sh
# Flower's own command in this project: ./flwr.sh run app fleet · ./flwr.sh list fleet · ./flwr.sh log ID fleet
set -eu
cd "$(dirname "$0")"
. ./env.sh
exec flwr "$@"
