#!/bin/sh
# The server's keys, once, and its invitation: keys.sh HOST PORT POST
set -eu
[ -e keys/invitation.json ] || incrowd flower keys keys --host "$1" --port "$2"
mkdir -p "$3/enrolled"
cp keys/invitation.json "$3/"
