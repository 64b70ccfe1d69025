#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All-reduce between two hosts at RATE beside what the wire allows, and beside MPI and gloo:
#
#     bench/dev/network.sh BUILD [RATE [SAMPLES]]       default 1gbit, 7
#
# The hosts are network namespaces of this script's own, joined by a veth pair whose two ends send
# no faster than RATE (tc tbf). Needs root, ip, tc and nsenter. Plain and TLS, 1 and 2 ranks a host.
set -eu
build=$(cd "$1" && pwd)
rate=${2:-1gbit}
samples=${3:-7}
program=$build/bench/dev/network
lockstep=$build/lockstep
sizes=${SIZES:-"100000 1000000 10000000 100000000"}
name=lsnet$$
dir=$(mktemp -d)
trap 'ip netns del ${name}h0 2>/dev/null; ip netns del ${name}h1 2>/dev/null; rm -rf "$dir"' EXIT
for k in 0 1; do
    ip netns add ${name}h$k
    ip -n ${name}h$k link set lo up
done
ip -n ${name}h0 link add wire type veth peer name wire netns ${name}h1
ip -n ${name}h0 addr add 10.98.1.1/24 dev wire
ip -n ${name}h1 addr add 10.98.1.2/24 dev wire
ip -n ${name}h0 link set wire up
ip -n ${name}h1 link set wire up
if [ "$rate" != none ]; then
    ip netns exec ${name}h0 tc qdisc add dev wire root tbf rate "$rate" burst 32k latency 20ms
    ip netns exec ${name}h1 tc qdisc add dev wire root tbf rate "$rate" burst 32k latency 20ms
fi
"$lockstep" secret "$dir/secret"

node() { # number, ranks of a host, flags
    k=$1 n=$2
    shift 2
    nsenter --net=/run/netns/${name}h$k "$lockstep" run --nnodes 2 --node-rank $k \
        --rendezvous 10.98.1.1:29400 --secret-file "$dir/secret" "$@" -n $n \
        "$program" 10.98.1.1 5500 $samples $sizes 2>"$dir/err.$k" || cat "$dir/err.$k"
}
for n in ${RANKS:-1 2}; do
    for plane in ${PLANES:-plain tls}; do
        echo "# $rate, $n ranks a host, $plane"
        node 1 $n --data-plane $plane >/dev/null &
        node 0 $n --data-plane $plane | sed 's/^\[0\] //'
        wait
    done
    if [ -n "${PEERS-yes}" ]; then # in turns with ours; PEERS= leaves them out
        python3 "$(dirname "$0")/network_peers.py" "$build" "$name" "$dir/secret" $n ${ROUNDS:-3} \
            ${PEER_SIZES:-1000000 10000000}
    fi
done
