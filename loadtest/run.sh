#!/usr/bin/env bash
# Run the load test, from anywhere: loadtest/run.sh --help
set -eu

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)

for python in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "$root/.venv/bin/python" "$(command -v python3 || true)"; do
    [ -x "$python" ] && break
done
[ -x "$python" ] || { echo "loadtest: python3 is missing: install Python 3.11 or newer" >&2; exit 1; }

# Behind what is there, so that an `appserver` of one's own can be put in front. -P: whatever
# lies in the current directory is not imported.
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$root"
exec "$python" -P -m loadtest "$@"
