#!/usr/bin/env bash
# Brings a bare Debian machine to where every make target runs: system packages, .venv from requirements.lock, the
# project itself (editable). Writes the stamp .venv/.setup-ok, on which the Makefile decides that nothing is left to do.
# Without root it changes nothing of the system: it prints the one line to run and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stamp=.venv/.setup-ok
is_current() {
  local input
  [ -e "$stamp" ] || return 1
  for input in requirements.lock pyproject.toml tools/setup.sh; do
    [ "$stamp" -nt "$input" ] || return 1
  done
}

# Two makes at the same time must not build the same .venv.
mkdir -p build
exec 9>build/.setup.lock
flock 9
is_current && exit 0

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# cocotb loads libpython into the simulator; Debian ships it apart from the interpreter.
has_libpython() {
  "$1" - <<'PY' 2>/dev/null
import ctypes, os, sys, sysconfig
get = sysconfig.get_config_var
name = get("INSTSONAME")
places = [get("LIBDIR"), os.path.join(get("LIBDIR"), get("MULTIARCH") or "")]
if not any(os.path.exists(os.path.join(place, name)) for place in places):
    ctypes.CDLL(name)
PY
}

has_header() {
  echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1
}

missing_packages() {
  local python
  command -v g++ >/dev/null || echo g++
  command -v make >/dev/null || echo make
  # verilator's driver script needs more than Debian's perl-base
  perl -MFindBin -MGetopt::Long -MPod::Usage -e 1 2>/dev/null || echo perl
  command -v ccache >/dev/null || echo ccache
  command -v tshark >/dev/null || echo tshark
  has_header lz4.h || echo liblz4-dev
  has_header zlib.h || echo zlib1g-dev
  if python=$(find_python); then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    has_libpython "$python" || "$python" -c 'import sys; print("libpython%d.%d" % sys.version_info[:2])'
  else
    echo python3 python3-venv libpython3.11
  fi
}

packages=$(missing_packages | tr '\n' ' ')
if [ -n "$packages" ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: missing system packages; run:  sudo apt-get update && sudo apt-get install -y --no-install-recommends $packages" >&2
    exit 1
  fi
  echo "setup: apt-get install $packages"
  log=build/setup-apt.log
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get -o DPkg::Lock::Timeout=600 update &&
         apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed, see $log" >&2
    exit 1
  fi
  still=$(missing_packages | tr '\n' ' ')
  if [ -n "$still" ]; then
    echo "setup: still missing after apt-get: $still" >&2
    exit 1
  fi
fi

python=$(find_python)
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
  "$python" -m venv .venv
fi
echo "setup: installing $(grep -c == requirements.lock) packages into .venv with $(.venv/bin/python --version)"
log=build/setup-pip.log
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input install --no-deps)
if ! { "${pip[@]}" -r requirements.lock && "${pip[@]}" --no-build-isolation -e .; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: pip failed, see $log" >&2
  exit 1
fi
touch "$stamp"
echo "setup: done"
