#!/usr/bin/env bash
# Makes Python.h available to setup.py where python3-dev is not installed, without root (Debian and Ubuntu):
# downloads libpython3.X-dev with apt's state in private folders and unpacks it into build/python-headers.
# Usage: tools/python_headers.sh [PYTHON]
set -euo pipefail

python=${1:-python3}
cd "$(dirname "$0")/.."

version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
installed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
target=build/python-headers
if [ -e "$installed/Python.h" ] || [ -e "$target/usr/include/python$version/Python.h" ]; then
    exit 0
fi

give_up() {
    echo "Python.h of Python $version is missing and could not be fetched ($1)." >&2
    echo "Install it: apt install python3-dev (as root), or use a Python that brings its headers: make PYTHON=..." >&2
    exit 1
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || give_up "no apt-get here"

echo "Python.h is not installed: fetching libpython$version-dev into $target (no root needed)"
work=$PWD/build/python-headers-apt
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$target"
trap 'rm -rf "$work"' EXIT

# The system's package sources and keys, but nothing written outside $work; hooks of the system's configuration
# (such as those of container images) may fail without root, which does no harm: only the package counts.
apt=(apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 -o Acquire::Languages=none)
"${apt[@]}" update >"$work/log" 2>&1 || true
(cd "$work" && "${apt[@]}" download "libpython$version-dev" >>"$work/log" 2>&1) ||
    give_up "apt: $(grep -m 1 -E '^(W: Failed|E:)' "$work/log" || tail -n 1 "$work/log")"
dpkg-deb --fsys-tarfile "$work"/libpython"$version"-dev_*.deb | tar -x -C "$target" ./usr/include
[ -e "$target/usr/include/python$version/Python.h" ] || give_up "libpython$version-dev holds no Python.h"
