#!/bin/bash
# Starts a node by ssh on each of these hosts, and ends them when this script ends.
#
#   openssl rand -hex 32 > key && chmod 600 key
#   examples/cluster/nodes.sh key CONTROLLER:7411 HOST HOST …
#
# SSH and FREERUN say how to call ssh here and Freerun there, such as FREERUN=/opt/freerun/.venv/bin/freerun.
set -euo pipefail
key=$1 controller=$2
shift 2

for host in "$@"; do
    # The key goes to a file that its owner alone can read: a command line can be read by everybody on a machine.
    ${SSH:-ssh} "$host" 'umask 077; cat > .freerun-key' < "$key"
    # The node ends when its input does: when ssh ends, or this script, in whatever way.
    tail --pid=$$ -f /dev/null |
        ${SSH:-ssh} "$host" "${FREERUN:-freerun} node --join $controller --key-file .freerun-key --end-with-stdin" &
done
wait
