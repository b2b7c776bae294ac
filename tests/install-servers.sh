#!/bin/sh
# Install the servers and tools that the tests and the load test start, where they are missing, and
# build the workers in other languages.
set -eu

# Servers' programs are not on everybody's PATH.
PATH="$PATH:/usr/sbin:/usr/lib/rabbitmq/bin:/usr/local/go/bin"
for directory in /usr/lib/postgresql/*/bin; do PATH="$PATH:$directory"; done
here=$(dirname "$0")

missing=  # packages
for program in rabbitmq-server redis-server nginx wrk curl openssl node npm go initdb; do
    command -v "$program" >/dev/null && continue
    case $program in
        node) package=nodejs ;;
        go) package=golang-go ;;
        initdb) package=postgresql ;;
        *) package=$program ;;
    esac
    missing="$missing $package"
done
[ -n "$missing" ] || exec "$here/../examples/polyglot/build.sh"

if [ "$(id -u)" = 0 ]; then
    root=
elif sudo -n true 2>/dev/null; then
    root='sudo -n'
else
    root=none
fi
if [ "$root" = none ] || ! command -v apt-get >/dev/null; then
    echo "please install:$missing" >&2
    exit 1
fi

echo "installing:$missing"
# shellcheck disable=SC2086  # both are lists of words
{
    $root apt-get -qq update
    $root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install --yes --no-install-recommends $missing
}
exec "$here/../examples/polyglot/build.sh"
