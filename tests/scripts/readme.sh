#!/usr/bin/env bash
# The README's walk with a cloud, as it stands there but for the ports.
. "$3/tests/support/command.sh"
mkdir build && ln -s "$calla" build/calla && ln -s "$source/models" models
command -v curl >/dev/null || { echo "SKIP: no curl"; exit 77; }

# walk FAR NEAR: the walk with these ports; its output is in `out` and `err`.
walk() {
    {
        echo 'trap "kill \$(jobs -p) 2>/dev/null; wait" EXIT'
        sed -n '/^## A cloud beside/,/^## On an/s/^    //p' "$source/README.md" |
            sed "s/8081/$1/g; s/8080/$2/g; s/--cloud-model tiny/& --port $2/; s/calla tasks [a-z]*/& --url http:\/\/127.0.0.1:$2/"
    } >walk
    rm -f ./*.db*
    bash walk >out 2>err
}

[ "$(sed -n '/^## A cloud beside/,/^## On an/s/^    //p' "$source/README.md" | grep -c 'calla serve')" = 2 ] ||
    fail "the README has no walk with two servers"
# free_port FROM: a port where nothing listens, below those that the system gives out itself.
free_port() {
    local port
    while port=$(($1 + RANDOM % 6000)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}
walk "$(free_port 20000)" "$(free_port 26000)"

# has PART...: each is in the output.
has() {
    local part
    for part; do grep -qF -- "$part" out || fail "no '$part' in: $(cat out err)"; done
}
[ "$(grep -c '"calla": {"route": "cloud"' out)" = 3 ] || fail "not three answers of the cloud: $(cat out)"
has '2 email: redact' '"content": "\"jane.doe@corp-mail.com\""' '"code": "consent_required"'
has 'agreed to by consent' '"reasons": ["1 iban: keep_local"]'
has 'step 1 the texts that may leave' 'cloud done' 'step 2 the texts that stay here' 'input_2 is sensitive'
[ "$(grep -c 'step 0 plan' out)" = 2 ] || fail "not two rounds: $(cat out)"
[ "$(grep -c 'task.created' err)" = 1 ] || fail "an event is told twice: $(cat err)"
# What left and what was kept: the question, the address, the card (asked, agreed to), the IBAN, and
# the step of the task.
awk '/^number +time/ { in_audit = 1; next } in_audit { printf "%s ", $3 }' out >audit
[ "$(cat audit)" = "answered answered asked answered local answered " ] || fail "the audit: $(cat out)"
finish
