# purr trace: the table, the files, ranks, and what goes wrong.
. "$(dirname "$0")/support.sh"
need_python
cat >"$work/layer.yaml" <<'YAML'
name: "small <&>"
hidden_size: 64
intermediate_size: 40
num_experts: 12
top_k: 3
max_tokens: 200
shared_expert:
  intermediate_size: 24
YAML
layer=$work/layer.yaml

run 0 trace "$layer" --tokens 100 --threads 2 --output "$work/t.json" --svg "$work/t.svg"
for text in "Timeline of layer small <&>: " "1 rank" "gate-up" "shared down" "slot sum" "computing" "idle" "tail"; do
  says out "$text"
done
[ -s "$work/err" ] && complain "a short trace prints to stderr"

# Both files are what they should be, and say the same.
python3 - "$work/t.json" "$work/t.svg" <<'PYTHON' || complain "the files are wrong"
import json, sys, xml.etree.ElementTree as xml
trace = json.load(open(sys.argv[1]))
assert trace["otherData"] == {"layer": "small <&>", "dropped_events": 0}, trace["otherData"]
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
whole = events.pop(0)
assert whole["name"] == "forward" and whole["ts"] == 0
threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
assert all((e["pid"], e["tid"]) in threads for e in events)
assert all(0 <= e["ts"] and e["ts"] + e["dur"] <= whole["dur"] + 0.002 for e in events)
assert {"gather", "gate-up", "epilogue", "down", "push", "slot sum", "schedule"} <= {e["name"] for e in events}
assert {e["args"]["expert"] for e in events if e["name"] == "gate-up"} == set(range(12))
for thread in threads:  # nothing on a thread of the host lies within anything else
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == thread)
    assert all(b[0] >= a[1] - 0.002 for a, b in zip(spans, spans[1:]))
picture = xml.parse(sys.argv[2]).getroot()
texts = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
assert "small <&>" in texts and "thread 0" in texts and "gate-up" in texts, texts
PYTHON

# All ranks stand on one timeline.
run 0 trace "$layer" --tokens 100 --ranks 3 --threads 2 --json --output "$work/t.json"
json_is 'o["num_ranks"], [r["rank"] for r in o["ranks"]], o["num_dropped_events"]' "(3, [0, 1, 2], 0)"
json_is 'all(r["communication_ns"] > 0 and 0 <= r["hidden_communication_ns"] <= r["communication_ns"] for r in o["ranks"])' True
json_is '{"pull", "push", "exchange", "wait: ranks"} <= set(o["kinds"])' True
json_is '0 < o["compute_share"] <= 1 and 0 <= o["idle_share"] < 1 and o["tail_ns"] <= o["total_ns"]' True
python3 - "$work/t.json" <<'PYTHON' || complain "the ranks are not there"
import json, sys
names = [e["args"]["name"] for e in json.load(open(sys.argv[1]))["traceEvents"] if e["name"] == "process_name"]
assert names == ["rank 0", "rank 1", "rank 2"], names
PYTHON

# A shorter file replaces a longer one, whole; too little room is said.
head -c 1000000 /dev/zero >"$work/t.json"
run 0 trace "$layer" --tokens 100 --threads 1 --events 3 --output "$work/t.json"
says out "found no room; ask for more (purr_trace_desc_t.events_per_track, --events)"
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["otherData"]["dropped_events"] > 0' "$work/t.json" ||
  complain "the file is damaged, or does not say what is missing"

# What cannot be leaves no file behind.
refuses "cannot be written" trace "$layer" --tokens 10 --output "$work/new.json" --svg "$work/nowhere/t.svg"
[ -e "$work/new.json" ] && complain "a failed trace leaves a file"
refuses "none.safetensors" trace "$layer" --svg "$work/new.svg" --input "$work/none.safetensors"
[ -e "$work/new.svg" ] && complain "a failed trace leaves a file"
refuses "a CONFIG or --checkpoint is needed" trace
says err "purr trace configs/"
refuses "--events takes a whole number" trace "$layer" --events 0
finish
