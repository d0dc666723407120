package decide_test

import (
	"fmt"
	"strings"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

// now is the time of every decision in these tests.
var now = podviewtest.Now

// say formats actions as one line.
func format(a decide.Actions) string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if a.StopAll {
		add("stop-all")
	}
	for _, id := range a.StopSandboxes {
		add("stop-sandbox(%s)", id)
	}
	for _, k := range a.Kill {
		add("kill(%s)", k.ContainerID)
	}
	for _, id := range a.Reset {
		add("reset(%s)", id)
	}
	if a.CreateSandbox {
		add("sandbox(%d)", a.Attempt)
	}
	for _, u := range a.Resize.Memory {
		add("memory(%s)", u.ID)
	}
	for _, u := range a.Resize.CPU {
		add("cpu(%s)", u.ID)
	}
	if a.Resize.Pod {
		add("cgroup")
	}
	for _, s := range a.Start {
		word := s.Container.Name
		if s.Restart.Count > 0 {
			word += fmt.Sprintf(" rc=%d", s.Restart.Count)
		}
		add("start(%s)", word)
	}
	for _, w := range a.Wait {
		add("wait(%s %s of %s)", w.Container.Name, w.Until.Sub(now), w.Delay)
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, " ")
}
