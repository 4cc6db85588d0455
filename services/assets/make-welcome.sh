#!/bin/sh
# Packs services/assets/welcome/ into services/assets/welcome.car, which the binary embeds.
#
# Needs a Kubo binary: $KUBO, or `ipfs` on the PATH. It uses a temporary repository, without
# network access. The output is deterministic: commit the CAR together with the changed sources.
set -eu

kubo=${KUBO:-ipfs}
assets=$(cd "$(dirname "$0")" && pwd)
IPFS_PATH=$(mktemp -d)
export IPFS_PATH IPFS_TELEMETRY=off
trap 'rm -rf "$IPFS_PATH"' EXIT

"$kubo" init --profile=test >/dev/null
root=$("$kubo" add --offline --recursive --quieter --pin=false --cid-version=1 "$assets/welcome")
"$kubo" dag export --offline --progress=false "$root" >"$assets/welcome.car"
echo "$root"
