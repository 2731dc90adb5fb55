# scripts/browser.sh - a headless Chromium for a script: opened, told, looked at; sourced, not run.
#
# Speaks the DevTools protocol over two pipes (messages end with a NUL), so that it needs no port and no other program than
# chromium and jq. Each call waits for its answer, at most BROWSER_SECONDS. browser_close ends it; what it keeps lies in
# the folder that browser_open was given.
# shellcheck shell=bash
BROWSER_SECONDS=60
browser_serial=0

browser_there() {
    command -v chromium >/dev/null && command -v jq >/dev/null
}

# browser_call METHOD [PARAMETERS]: the result, as JSON in $browser_result
browser_call() {
    local message
    browser_serial=$((browser_serial + 1))
    message=$(jq -nc --arg method "$1" --argjson id "$browser_serial" --arg session "${browser_session:-}" --argjson params "${2:-"{}"}" \
        '{id: $id, method: $method, params: $params} + if $session == "" then {} else {sessionId: $session} end')
    printf '%s\0' "$message" >&"$browser_to"
    while IFS= read -r -d '' -t "$BROWSER_SECONDS" -u "$browser_from" message; do
        case $message in
        "{\"id\":$browser_serial,"*)
            browser_result=$(jq -c '.result // {}' <<<"$message")
            jq -e 'has("error") | not' <<<"$message" >/dev/null
            return
            ;;
        esac # else an event
    done
    return 1
}

# browser_open FOLDER URL WIDTH HEIGHT
browser_open() {
    mkdir -p "$1/home"
    mkfifo "$1/to" "$1/from"
    HOME=$1/home chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions \
        --disable-background-networking --disable-component-update --user-data-dir="$1/profile" --remote-debugging-pipe \
        about:blank 3<"$1/to" 4>"$1/from" >"$1/log" 2>&1 &
    browser_pid=$!
    exec {browser_to}>"$1/to" {browser_from}<"$1/from"
    browser_session=
    browser_call Target.createTarget '{"url":"about:blank"}' || return 1
    browser_call Target.attachToTarget "$(jq -c '{targetId, flatten: true}' <<<"$browser_result")" || return 1
    browser_session=$(jq -r .sessionId <<<"$browser_result")
    browser_size "$3" "$4" && browser_call Page.enable && browser_call Page.navigate "$(jq -nc --arg url "$2" '{url: $url}')"
}

browser_size() { # WIDTH HEIGHT
    browser_call Emulation.setDeviceMetricsOverride "{\"width\":$1,\"height\":$2,\"deviceScaleFactor\":1,\"mobile\":false}"
}

# browser_eval EXPRESSION: its value on stdout (a promise is waited for)
browser_eval() {
    browser_call Runtime.evaluate "$(jq -nc --arg expression "$1" '{expression: $expression, returnByValue: true, awaitPromise: true}')" &&
        jq -r '.result.value // .exceptionDetails.exception.description // empty' <<<"$browser_result"
}

# browser_until EXPRESSION [SECONDS]: until it is true
browser_until() {
    local limit=$(($(date +%s) + ${2:-$BROWSER_SECONDS}))
    until [ "$(browser_eval "!!($1)")" = true ]; do
        [ "$(date +%s)" -lt "$limit" ] || return 1
        sleep 0.1
    done
}

browser_key() { # KEY [TEXT]: pressed and let go; TEXT: what it types
    browser_call Input.dispatchKeyEvent "$(jq -nc --arg key "$1" --arg text "${2:-}" \
        '{type: "keyDown", key: $key, code: $key} + if $key == "Enter" then {windowsVirtualKeyCode: 13} elif $key == "Escape" then {windowsVirtualKeyCode: 27}
          else {} end + if $text == "" then {} else {text: $text} end')" &&
        browser_call Input.dispatchKeyEvent "$(jq -nc --arg key "$1" '{type: "keyUp", key: $key, code: $key}')"
}

browser_type() { # TEXT: into what has the focus
    browser_call Input.insertText "$(jq -nc --arg text "$1" '{text: $text}')"
}

browser_shot() { # FILE.webp or FILE.png
    local format='{"format":"webp","quality":70}'
    [ "${1%.png}" = "$1" ] || format='{"format":"png"}'
    browser_call Page.captureScreenshot "$format" && jq -r .data <<<"$browser_result" | base64 -d >"$1"
}

browser_close() {
    [ -n "${browser_pid:-}" ] || return 0
    browser_session=
    browser_call Browser.close
    exec {browser_to}>&- {browser_from}<&-
    wait "$browser_pid"
    browser_pid=
}
