#!/bin/sh
# Build the workers of the tests below build/polyglot, where their sources have changed.
set -eu
cd "$(dirname "$0")"
build=$(cd ../.. && pwd)/build/polyglot

mkdir -p "$build/node"
if ! cmp -s node/package-lock.json "$build/node/installed"; then
    cp node/package.json node/package-lock.json node/.npmrc "$build/node/"
    (cd "$build/node" && npm ci --silent --omit=optional)
    cp node/package-lock.json "$build/node/installed"
fi

# Go itself finds out what has changed. What it compiles is kept where it keeps it for all checkouts,
# because the first time costs half a minute.
cd go
GOTOOLCHAIN=local CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -o "$build/go-worker" .
