package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheInquiryFindsWhatIsWrong tells stories of two containers of one pod, of which each but the true ones has to be found out.
func TestTheInquiryFindsWhatIsWrong(t *testing.T) {
	begun := time.Now().Add(-time.Hour)
	for _, test := range []struct {
		name string
		// cause is why the second container says that it was started.
		cause string
		// change changes what was seen of the two, what the log says of them and what was done to the node.
		change func(before, after *instance, starts map[string][]said, d *deeds)
		want   string
	}{
		{"killed", "exited with 137 (Error)", func(b, _ *instance, _ map[string][]said, d *deeds) { d.ended[b.id] = true }, ""},
		{"its sandbox was stopped", "sandbox replaced (No ready sandbox for pod can be found), exited with 137 (Error)",
			func(b, a *instance, _ map[string][]said, d *deeds) { d.ended[b.sandbox], a.sandbox = true, "s2" }, ""},
		{"removed", causeLost, func(b, _ *instance, _ map[string][]said, d *deeds) { d.removed[b.id] = true }, ""},
		{"changed", causeSpec, func(_, a *instance, _ map[string][]said, d *deeds) {
			a.spec, d.changed["pod1"] = "2", []time.Time{begun.Add(time.Second)}
		}, ""},
		{"ends by itself", "exited with 1 (Error)", func(b, a *instance, _ map[string][]said, _ *deeds) {
			b.name, a.name, b.code = failing, failing, 1
		}, ""},
		{"its end was lost with the runtime", "exited with 255 (Unknown)", func(b, a *instance, _ map[string][]said, d *deeds) {
			b.name, a.name, b.code, b.reason, d.runtimeKilled = failing, failing, 255, "Unknown", []time.Time{begun.Add(10 * time.Second)}
		}, ""},
		{"given up with its caller", "exited with 128 (StartError)", func(b, _ *instance, _ map[string][]said, d *deeds) {
			b.started, b.begun, b.code, b.reason = false, time.Time{}, 128, "StartError"
			d.callerKilled = []time.Time{begun.Add(time.Second)}
		}, ""},
		{"cut short", causeNeverStarted, func(b, _ *instance, s map[string][]said, _ *deeds) {
			b.started, b.ended = false, false
			delete(s, b.id)
		}, ""},

		{"no line", "exited with 137 (Error)", func(b, a *instance, s map[string][]said, d *deeds) {
			d.ended[b.id] = true
			delete(s, a.id)
		}, "the log has 0 lines"},
		{"two lines", "exited with 137 (Error)", func(b, a *instance, s map[string][]said, d *deeds) {
			d.ended[b.id] = true
			s[a.id] = append(s[a.id], s[a.id]...)
		}, "the log has 2 lines"},
		{"another line", "exited with 137 (Error)", func(_, a *instance, s map[string][]said, _ *deeds) {
			s[a.id] = []said{{count: 1, cause: causeSpec}}
		}, "the log says"},
		{"no cause", "", nil, "its cause is"},
		{"not the first", causeFirst, nil, "its cause is"},
		{"first again", causeFirst, func(_, a *instance, s map[string][]said, _ *deeds) {
			a.count, s[a.id] = 0, []said{{cause: causeFirst}}
		}, "it says that it is the first"},
		{"counted twice", "exited with 137 (Error)", func(b, _ *instance, s map[string][]said, _ *deeds) {
			b.count, b.cause, s[b.id] = 1, causeFirst, nil
		}, "with no smaller count"},
		{"nobody has ended it", "exited with 137 (Error)", nil, "nobody has ended it"},
		{"another end", "exited with 137 (Error)", func(b, _ *instance, _ map[string][]said, d *deeds) {
			b.code, d.ended[b.id] = 2, true
		}, "it exited with 2 (Error)"},
		{"another reason", "exited with 137 (OOMKilled)", func(b, _ *instance, _ map[string][]said, d *deeds) {
			d.ended[b.id] = true
		}, "it exited with 137 (Error)"},
		{"not changed", causeSpec, nil, "it was made from the same"},
		{"same sandbox", causeSandbox, nil, "it is in the same sandbox"},
		{"nobody has ended its sandbox", causeSandbox, func(_, a *instance, _ map[string][]said, _ *deeds) { a.sandbox = "s2" },
			"nobody has ended the sandbox"},
		{"nobody has removed it", causeLost, nil, "nobody has removed it"},
		{"it has run", causeNeverStarted, nil, "it has run"},
		{"no such cause", "bad luck", nil, "there is no such cause"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := &instance{id: "c1", sandbox: "s1", uid: "u", pod: "pod1-node", name: "main", cause: causeFirst, spec: "1",
				created: begun, begun: begun, started: true, ended: true, code: 137, reason: "Error"}
			after := &instance{id: "c2", sandbox: "s1", uid: "u", pod: "pod1-node", name: "main", count: 1, cause: test.cause, spec: "1",
				created: begun.Add(time.Minute), started: true}
			starts := map[string][]said{"c1": {{cause: causeFirst}}, "c2": {{count: 1, cause: test.cause}}}
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
		starts["c1"][0] != (said{cause: causeFirst}) || starts["c2"][0] != (said{count: 3, cause: "spec changed, exited with 1 (Error)"}) {
		t.Errorf("read %v, error %v", starts, err)
	}
}
