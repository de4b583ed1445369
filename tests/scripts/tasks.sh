#!/usr/bin/env bash
# calla tasks against two servers: a task split over both, a follow-up, what is kept, the commands; and
# a server that is killed in the middle of its tasks, again and again.
. "$3/tests/support/command.sh"
command=tasks
tiny=$source/models/tiny
pids=
trap '[ -z "$pids" ] || kill -9 $pids 2>/dev/null; rm -rf "$work"' EXIT

# start NAME OPTIONS...: a server whose port is in the file NAME.port; its process id in $started.
start() {
    local name=$1
    shift
    rm -f "$name.port"
    "$calla" serve -m "$tiny" --threads 1 --ctx 2048 --no-think --port 0 --port-file "$name.port" "$@" \
        >"$name.out" 2>"$name.err" &
    started=$!
    pids="$pids $started"
    until [ -e "$name.port" ] && grep -q 'listening on' "$name.err"; do
        kill -0 $started 2>/dev/null || { fail "$name ended: $(cat "$name.err")"; finish; }
        sleep 0.02
    done
}
tasks() { "$calla" tasks "$@" --url "http://127.0.0.1:$(cat near.port)" 2>err; }
# The server that has the tasks.
near() {
    start near --cloud-url "http://127.0.0.1:$(cat far.port)/v1" --cloud-model tiny --audit audit.db \
        --tasks tasks.db --policy policy.json
}

echo '{"categories": {"phone": "ask"}}' >policy.json
start far
far=$started
near
echo "A river is water that flows to the sea." >notes.txt
echo "Card 4111 1111 1111 1111" >card.txt
tasks add -p "Say what each text is." notes.txt card.txt --tokens 4000 --wait >result ||
    fail "add: $(cat err)"
[ -s result ] || fail "the result is empty: $(cat err)"
grep -q "task.done" err || fail "the events are not told: $(cat err)"
id=$(tasks list --state done --json | grep -oE 'task_[A-Za-z0-9]+' | head -1)
tasks show "$id" >shown || fail "show: $(cat err)"
grep -q "step 0 plan" shown || fail "show: $(cat shown)"
grep -q "local done" shown || fail "show: $(cat shown)"
tasks follow "$id" -p "Shorter." --wait >result || fail "follow: $(cat err)"
tasks result "$id" >again || fail "result: $(cat err)"
cmp -s result again || fail "result is another than follow printed"
tasks add -p "Later." --paused >paused || fail "add --paused: $(cat err)"
paused=$(cat paused)
tasks priority "$paused" --priority 5 || fail "priority: $(cat err)"
tasks list | head -1 | grep -q "$paused .*(paused) *5 " || fail "list: $(tasks list)"
tasks cancel "$paused" || fail "cancel: $(cat err)"
tasks result "$paused" && fail "the result of a cancelled task"
grep -q "the task is cancelled" err || fail "the result of a cancelled task: $(cat err)"
tasks delete "$paused" || fail "delete: $(cat err)"
tasks show "$paused" && fail "show after delete"
grep -q "There is no task" err || fail "show after delete: $(cat err)"
[ "$(tasks add -p x --once mine --paused)" = "$(tasks add -p x --once mine --paused)" ] ||
    fail "--once files twice"

# What has to be asked about waits for a yes; the budget leaves nothing for a plan. Without a terminal
# it is said how to give it.
pay=(add -p "Call +49 30 12345678" --tokens 1500 --wait)
setsid "$calla" tasks "${pay[@]}" --url "http://127.0.0.1:$(cat near.port)" >out 2>unasked </dev/null &&
    fail "an answer without consent: $(cat out)"
asking=$(tasks list --state waiting_for_consent | cut -d' ' -f1)
tasks show "$asking" | grep -q "^    phone  " || fail "show does not say what is asked: $(tasks show "$asking")"
grep -q "calla tasks consent $asking" unasked || fail "it is not said how to agree: $(cat unasked)"
if command -v script >/dev/null; then
    for word in n y; do
        [ -n "$asking" ] || asking=$(tasks add "${pay[@]:1:4}")
        until [ -n "$(tasks list --state waiting_for_consent)" ]; do sleep 0.02; done
        echo "$word" | script -qec "$calla tasks consent $asking --url http://127.0.0.1:$(cat near.port)" \
            /dev/null >out 2>err
        grep -q "phone " out || fail "consent $word does not show what is found: $(cat out err)"
        tasks watch "$asking" >out || fail "after consent $word: $(cat err)"
        tasks show "$asking" >"shown.$word"
        tasks delete "$asking" || fail "delete: $(cat err)"
        asking=
    done
    grep -q "local done.*nobody agreed" shown.n || fail "after a no: $(cat shown.n)"
    grep -q "cloud done.*agreed to by consent" shown.y || fail "after a yes: $(cat shown.y)"
else
    tasks delete "$asking" || fail "delete: $(cat err)"
fi

# Killed at any moment: the tasks are all there afterwards, and end.
for i in 1 2 3; do tasks add -p "Task $i" notes.txt >>filed || fail "add: $(cat err)"; done
for i in 1 2 3 4; do
    sleep "0.$((RANDOM % 9 + 1))"
    kill -9 "$started"
    wait "$started" 2>/dev/null
    near
done
while read -r id; do
    tasks watch "$id" >/dev/null || fail "watch $id: $(cat err)"
done <filed
[ "$(tasks list --state done --json | wc -l)" = 4 ] || fail "after kills: $(tasks list)"
grep -q "another process has them open" near.err && fail "the tasks are locked: $(cat near.err)"
"$calla" audit --audit audit.db --verify >/dev/null 2>err || fail "the audit: $(cat err)"
grep -qF "4111" far.err near.err && fail "the card is in a log"

# A second server does not take the same file.
"$calla" serve -m "$tiny" --threads 1 --port 0 --tasks tasks.db >out 2>err && fail "two servers on one file"
grep -q "another process has them open" err || fail "two servers: $(cat err)"

for pid in $started $far; do
    kill -TERM "$pid"
    wait "$pid" || fail "a server's exit code is $?"
done
pids=
refused 2 "which command?"
refused 2 "unknown command 'frobnicate'" frobnicate
refused 2 "what is to be done?" add
refused 2 "the id of one task is wanted" show
refused 2 "the id of one task is wanted" show a/../b
refused 2 "list takes no" list x
refused 2 "--priority N" priority task_1
refused 2 "--once: a name is wanted" add -p x --once ""
refused 2 "--once: a name is wanted" add -p x --once "$(printf 'a\r\nX: y')"
refused 1 "none.txt" add -p x none.txt
printf '\377' >binary
refused 1 "binary is no text in UTF-8" add -p x binary
refused 1 "127.0.0.1" list --url http://127.0.0.1:1
finish
