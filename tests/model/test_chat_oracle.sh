#!/bin/sh
# test_chat_oracle.sh - chat formats against Jinja itself: random conversations for every template
# file in $HILL_TEMPLATES (tests/oracle/chat_templates.py collect fills such a folder; nothing of it
# is committed).
set -u
cd "$(dirname "$0")/../.." || exit 1
[ -d "${HILL_TEMPLATES:-/nonexistent}" ] || {
    echo "HILL_TEMPLATES names no folder of chat templates (tests/oracle/chat_templates.py collect)"
    exit 77
}
python3 -c 'import jinja2' 2>/dev/null || {
    echo "python3-jinja2 is not installed"
    exit 77
}
program=build/release/tests/model/test_chat_template
exec python3 tests/oracle/chat_templates.py compare "$HILL_TEMPLATES" $program
