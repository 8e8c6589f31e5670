#!/usr/bin/env bash
# test_torch.sh [PYTEST ARGUMENTS]: the Python tests over the torch that TORCH names, which gets a
# virtual environment and a build tree of its own. docs/torch-versions.md keeps the last line.
source "$(dirname "$0")/common.sh"
[ -n "$TORCH" ] || die "Say which torch:  make test-torch TORCH=2.14.1"
grouped tools/setup.sh install
export PATH="$VENV/bin:$PATH:/usr/sbin:/sbin" PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES=""
export OMP_NUM_THREADS=1 # as in test.sh
ulimit -c 0

REPORT=build/logs$FLAVOUR/pytest.xml
verdict=0
grouped "$VENV/bin/pytest" tests/python --junit-xml="$REPORT" "$@" || verdict=1
"$VENV/bin/python" - "$REPORT" <<'SUMMARY'
import datetime, sys, torch, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
tests, bad, skipped = (
    sum(int(suite.get(name)) for name in names)
    for names in (["tests"], ["failures", "errors"], ["skipped"])
)
passed = tests - bad - skipped
print(f"{datetime.date.today()}: torch {torch.__version__}, Python {sys.version.split()[0]}: "
      f"{passed} passed, {bad} failed, {skipped} skipped")
SUMMARY
exit $verdict
