package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheInquiryFindsWhatIsWrong has cases of two containers of one pod. The inquiry has to find the error in each case
// except the correct ones.
func TestTheInquiryFindsWhatIsWrong(t *testing.T) {
	begun := time.Now().Add(-time.Hour)
	for _, test := range []struct {
		name string
		// cause is the second container's start cause.
		cause string
		// change changes the record of the two, their log lines and the actions on the node.
		change func(before, after *instance, starts map[string][]logLine, d *deeds)
		want   string
	}{
		{"killed", "exited with 137 (Error)", func(b, _ *instance, _ map[string][]logLine, d *deeds) { d.ended[b.id] = true }, ""},
		{"its sandbox was stopped", "sandbox replaced (pod sandbox is not ready), exited with 137 (Error)",
			func(b, a *instance, _ map[string][]logLine, d *deeds) { d.ended[b.sandbox], a.sandbox = true, "s2" }, ""},
		{"removed", causeLost, func(b, _ *instance, _ map[string][]logLine, d *deeds) { d.removed[b.id] = true }, ""},
		{"changed", causeSpec, func(_, a *instance, _ map[string][]logLine, d *deeds) {
			a.spec, d.changed["pod1"] = "2", []time.Time{begun.Add(time.Second)}
		}, ""},
		{"ends by itself", "exited with 1 (Error)", func(b, a *instance, _ map[string][]logLine, _ *deeds) {
			b.name, a.name, b.ends = failing, failing, []end{{1, "Error"}}
		}, ""},
		{"its end was lost with the runtime", "exited with 255 (Unknown)", func(b, a *instance, _ map[string][]logLine, d *deeds) {
			b.name, a.name, b.ends, d.runtimeKilled = failing, failing, []end{{1, "Error"}},
				[]time.Time{begun.Add(10 * time.Second)}
		}, ""},
		{"the runtime was killed while it made it", "exited with 255 (Unknown)",
			func(b, _ *instance, _ map[string][]logLine, d *deeds) {
				b.started, b.begun, b.ended, b.ends = false, time.Time{}, false, nil
				d.runtimeKilled = []time.Time{begun.Add(-200 * time.Millisecond)}
			}, ""},
		{"given up with its caller", "exited with 128 (StartError)", func(b, _ *instance, _ map[string][]logLine, d *deeds) {
			b.started, b.begun, b.ends = false, time.Time{}, []end{{startErrorCode, startErrorReason}}
			d.callerKilled = []time.Time{begun.Add(time.Second)}
		}, ""},
		{"cut short", causeNeverStarted, func(b, _ *instance, s map[string][]logLine, _ *deeds) {
			b.started, b.ended, b.ends = false, false, nil
			delete(s, b.id)
		}, ""},
		{"one in between came and went with its runtime", "exited with 137 (Error)", func(b, a *instance, s map[string][]logLine, d *deeds) {
			a.count, s[a.id] = 2, []logLine{{count: 2, cause: "exited with 137 (Error)"}}
			d.ended[b.id], d.runtimeKilled = true, []time.Time{begun.Add(10 * time.Second)}
		}, ""},
		{"removed by a syncloop that was killed then", causeLost, func(b, _ *instance, _ map[string][]logLine, d *deeds) {
			b.removed, d.callerKilled = begun.Add(10*time.Second), []time.Time{begun.Add(11 * time.Second)}
		}, ""},

		{"the end of its life", "sandbox replaced (pod sandbox is not ready), exited with 137 (Error)",
			func(_, a *instance, _ map[string][]logLine, d *deeds) {
				a.sandbox, d.changed["pod1"] = "s2", []time.Time{begun.Add(time.Second)}
			}, ""},
		{"it never ran, and went with its sandbox", causeFirst, func(b, a *instance, s map[string][]logLine, _ *deeds) {
			b.started, b.ended, b.ends, a.sandbox = false, false, nil, "s2"
			a.count, s[a.id] = 0, []logLine{{count: 0, cause: causeFirst}}
		}, ""},
		{"it never ran, and its sandbox is the same", causeFirst, func(b, a *instance, s map[string][]logLine, _ *deeds) {
			b.started, b.ended, b.ends = false, false, nil
			a.count, s[a.id] = 0, []logLine{{count: 0, cause: causeFirst}}
		}, "it says that it is the first"},
		{"it came back", "the pod came back, exited with 137 (Error)", func(_, a *instance, _ map[string][]logLine, d *deeds) {
			a.sandbox, d.changed["pod1"] = "s2", []time.Time{begun.Add(time.Second)}
		}, ""},
		{"it did not come back", "the pod came back, exited with 137 (Error)", func(_, a *instance, _ map[string][]logLine, _ *deeds) {
			a.sandbox = "s2"
		}, "its pod was not removed"},
		{"the end of its life, cut short", "exited with 137 (Error)", func(_, _ *instance, _ map[string][]logLine, d *deeds) {
			d.taken["pod1"] = []time.Time{begun.Add(time.Second)}
		}, ""},
		{"no other life", "exited with 137 (Error)", func(_, _ *instance, _ map[string][]logLine, d *deeds) {
			d.changed["pod1"] = []time.Time{begun.Add(time.Second)}
		}, "the test has not ended it"},
		{"removed because it never started", causeLost, func(b, _ *instance, _ map[string][]logLine, _ *deeds) {
			b.removed, b.started = begun.Add(10*time.Second), false
		}, ""},
		{"removed by a syncloop that was killed before", causeLost, func(b, _ *instance, _ map[string][]logLine, d *deeds) {
			b.removed, d.callerKilled = begun.Add(10*time.Second), []time.Time{begun.Add(9 * time.Second)}
		}, "the test has not removed it"},
		{"no line", "exited with 137 (Error)", func(b, a *instance, s map[string][]logLine, d *deeds) {
			d.ended[b.id] = true
			delete(s, a.id)
		}, "the log has 0 lines"},
		{"two lines", "exited with 137 (Error)", func(b, a *instance, s map[string][]logLine, d *deeds) {
			d.ended[b.id] = true
			s[a.id] = append(s[a.id], s[a.id]...)
		}, "the log has 2 lines"},
		{"another line", "exited with 137 (Error)", func(_, a *instance, s map[string][]logLine, _ *deeds) {
			s[a.id] = []logLine{{count: 1, cause: causeSpec}}
		}, "the log says"},
		{"no cause", "", nil, "its cause is"},
		{"not the first", causeFirst, nil, "its cause is"},
		{"first again", causeFirst, func(_, a *instance, s map[string][]logLine, _ *deeds) {
			a.count, s[a.id] = 0, []logLine{{cause: causeFirst}}
		}, "it says that it is the first"},
		{"counted twice", "exited with 137 (Error)", func(b, _ *instance, s map[string][]logLine, _ *deeds) {
			b.count, b.cause, s[b.id] = 1, causeFirst, nil
		}, "with no smaller count"},
		{"one in between is in no log", "exited with 137 (Error)", func(b, a *instance, s map[string][]logLine, d *deeds) {
			a.count, s[a.id], d.ended[b.id] = 2, []logLine{{count: 2, cause: "exited with 137 (Error)"}}, true
		}, "its count has to be 1 at most"},
		{"its end is in no log", "exited with 137 (Error)", func(b, _ *instance, _ map[string][]logLine, d *deeds) {
			b.ended, b.ends, d.ended[b.id] = false, nil, true
		}, "nothing has told of its end"},
		{"the test has not ended it", "exited with 137 (Error)", nil, "the test has not ended it"},
		{"another end", "exited with 137 (Error)", func(b, _ *instance, _ map[string][]logLine, d *deeds) {
			b.ends, d.ended[b.id] = []end{{2, "Error"}}, true
		}, "it exited with [2 (Error)]"},
		{"another reason", "exited with 137 (OOMKilled)", func(b, _ *instance, _ map[string][]logLine, d *deeds) {
			d.ended[b.id] = true
		}, "it exited with [137 (Error)]"},
		{"not changed", causeSpec, nil, "it was made from the same"},
		{"same sandbox", causeSandbox, nil, "it is in the same sandbox"},
		{"the test has not ended its sandbox", causeSandbox, func(_, a *instance, _ map[string][]logLine, _ *deeds) { a.sandbox = "s2" },
			"the test has not ended the sandbox"},
		{"the test has not removed it", causeLost, nil, "the test has not removed it"},
		{"it has run", causeNeverStarted, nil, "it has run"},
		{"no such cause", "bad luck", nil, "there is no such cause"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := &instance{id: "c1", sandbox: "s1", uid: "u", pod: "pod1-node", name: "main", cause: causeFirst, spec: "1",
				created: begun, begun: begun, started: true, ended: true, ends: []end{{137, "Error"}}}
			after := &instance{id: "c2", sandbox: "s1", uid: "u", pod: "pod1-node", name: "main", count: 1, cause: test.cause, spec: "1",
				created: begun.Add(time.Minute), started: true}
			starts := map[string][]logLine{"c1": {{cause: causeFirst}}, "c2": {{count: 1, cause: test.cause}}}
			d := newDeeds()
			if test.change != nil {
				test.change(before, after, starts, d)
			}
			h := &history{instances: map[string]*instance{before.id: before, after.id: after}}
			got := strings.Join(h.causes(starts, d).problems, "\n")
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}

func TestStartsAreReadFromAllLogs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"node.log.1": `syncloop   | time=2026-05-01T12:00:00Z level=INFO msg="starting a container" service=syncloop pod=chaos/a container=main container.id=c1 restart_count=0 cause="first start" trace_id=1` + "\n",
		"node.log": `pleg       | level=INFO msg="a container" container.id=c2` + "\n" +
			`syncloop   | level=INFO msg="starting a container" container.id=c2 restart_count=3 cause="spec changed, exited with 1 (Error)"` + "\n" +
			`syncloop   | level=INFO msg="started a container" container.id=c2 restart_count=3 cause="spec changed, exited with 1 (Error)"` + "\n",
		"containerd.log": `msg="starting a container" container.id=c3 restart_count=0 cause=x` + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	starts, err := readStarts(dir)
	if err != nil || len(starts) != 2 || len(starts["c1"]) != 1 || len(starts["c2"]) != 1 ||
		starts["c1"][0] != (logLine{cause: causeFirst}) || starts["c2"][0] != (logLine{count: 3, cause: "spec changed, exited with 1 (Error)"}) {
		t.Errorf("read %v, error %v", starts, err)
	}
}

// TestWhatNoLookHasSeenIsInTheRuntimesLog uses the log of a containerd in which two containers came and went. The
// second was started before the first had ended.
func TestWhatNoLookHasSeenIsInTheRuntimesLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "containerd.log")
	text := `time="2026-05-01T12:00:00.1Z" level=info msg="RunPodSandbox for name:\"pod1-node\" uid:\"u1\" namespace:\"chaos\" returns sandbox id \"s1\""
time="2026-05-01T12:00:00.2Z" level=info msg="CreateContainer within sandbox \"s1\" for container name:\"main\""
time="2026-05-01T12:00:00.3Z" level=info msg="CreateContainer within sandbox \"s1\" for name:\"main\" returns container id \"c1\""
time="2026-05-01T12:00:00.4Z" level=info msg="StartContainer for \"c1\""
time="2026-05-01T12:00:00.5Z" level=info msg="StartContainer for \"c1\" returns successfully"
time="2026-05-01T12:00:00.6Z" level=info msg="received container exit event container_id:\"c1\" id:\"probe\" pid:7 exited_at:{seconds:1777636801}"
time="2026-05-01T12:00:01.0Z" level=info msg="CreateContainer within sandbox \"s1\" for name:\"main\" attempt:1 returns container id \"c2\""
time="2026-05-01T12:00:01.1Z" level=info msg="StartContainer for \"c2\""
time="2026-05-01T12:00:01.2Z" level=info msg="StartContainer for \"c2\" returns successfully"
time="2026-05-01T12:00:03.0Z" level=info msg="received container exit event container_id:\"c1\" id:\"c1\" pid:8 exit_status:137 exited_at:{seconds:1777636802 nanos:5}"
time="2026-05-01T12:00:03.1Z" level=info msg="received container exit event container_id:\"c2\" id:\"c2\" pid:9 exited_at:{seconds:1777636803}"
time="2026-05-01T12:00:04.0Z" level=info msg="CreateContainer within sandbox \"s1\" for name:\"main\" attempt:2 returns container id \"c3\""
time="2026-05-01T12:00:04.1Z" level=info msg="StartContainer for \"c3\""
time="2026-05-01T12:00:04.2Z" level=error msg="StartContainer for \"c3\" failed" error="its sandbox is gone"
time="2026-05-01T12:00:04.3Z" level=info msg="RemoveContainer for \"c3\""
time="2026-05-01T12:00:04.4Z" level=info msg="RemoveContainer for \"c3\" returns successfully"
time="2026-05-01T12:00:05.0Z" level=info msg="Start
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := readRuntimeLog(path)
	if err != nil {
		t.Fatal(err)
	}
	h := &history{instances: map[string]*instance{}}
	starts := map[string][]logLine{"c1": {{cause: causeFirst}}, "c2": {{count: 1, cause: "exited with 137 (Error)"}}, "c3": nil}
	h.complete(log, starts)
	for id, want := range map[string]string{"c1": "[137 (Error)]", "c2": "[0 (Completed)]", "c3": "[128 (StartError)]"} {
		if i := h.instances[id]; i == nil || i.pod != "pod1-node" || i.uid != "u1" || i.name != "main" || i.sandbox != "s1" || fmt.Sprint(i.ends) != want {
			t.Errorf("of %s the log has %+v, want its end %s", id, i, want)
		}
	}
	if at := h.instances["c3"].removed; at.UnixMilli() != 1777636804300 {
		t.Errorf("c3 was to be removed at %v, want UnixMilli 1777636804300", at)
	}
	if twice := h.overlaps(); len(twice) != 1 {
		t.Errorf("two instances ran at once: %q, want that of c1 and c2", twice)
	}
	found := strings.Join(h.causes(starts, newDeeds()).problems, "\n")
	for _, want := range []string{"(c2, restart 1, pod u1): started because \"exited with 137 (Error)\", but the test has not ended it", "(c3, restart 0, pod u1): the log has 0 lines"} {
		if !strings.Contains(found, want) {
			t.Errorf("found %q, want %q", found, want)
		}
	}
}
