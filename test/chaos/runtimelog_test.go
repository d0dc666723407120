package chaos

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// logged is one container of the runtime's own log. The log is complete and up to date: the runtime logs a successful
// call before it answers.
type logged struct {
	id, sandbox string
	// uid and pod are set by complete; they are empty when the runtime was killed before it logged the creation of the
	// sandbox, and no inspection has seen it.
	uid, pod, name string
	created        time.Time
	// asked is the time of the start request, running that of the successful start; zero when missing. failed is true when
	// the start failed.
	requested, running time.Time
	failed             bool
	// removed is the time of the first removal request; zero without one. A client that retries after a kill gets the
	// answer that the removal is in progress.
	removed time.Time
	// exited is the time of the end of its program, with the exit code; zero when the runtime was dead then.
	exited time.Time
	code   int32
}

// Patterns of the runtime's log lines about sandboxes and containers.
var (
	sandboxMade   = regexp.MustCompile(`^RunPodSandbox for name:"([^"]*)" uid:"([^"]*)" .*returns sandbox id "([^"]*)"`)
	containerMade = regexp.MustCompile(`^CreateContainer within sandbox "([^"]*)" for name:"([^"]*)".* returns container id "([^"]*)"`)
	startAsked    = regexp.MustCompile(`^StartContainer for "([^"]*)"( returns successfully| failed)?$`)
	removeAsked   = regexp.MustCompile(`^RemoveContainer for "([^"]*)"$`)
	exitSeen      = regexp.MustCompile(`^received container exit event container_id:"([^"]*)" id:"([^"]*)"(?: pid:\d+)?(?: exit_status:(\d+))? ` +
		`exited_at:\{(?:seconds:(\d+))?(?: nanos:(\d+))?\}`)
)

// ledger has all containers of the runtime's log, by ID.
type ledger struct {
	containers map[string]*logged
	sandboxes  map[string]owner
}

// owner is the pod of a sandbox.
type owner struct{ pod, uid string }

// readRuntimeLog reads the log of a containerd, over all its restarts.
func readRuntimeLog(path string) (*ledger, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	l := &ledger{containers: map[string]*logged{}, sandboxes: map[string]owner{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.Contains(line, "Container") && !strings.Contains(line, "RunPodSandbox") && !strings.Contains(line, "container exit event") {
			continue
		}
		fields := fieldsOf(line)
		at, err := time.Parse(time.RFC3339Nano, fields["time"])
		if err != nil {
			continue // the line was cut off by a kill
		}
		l.take(at, fields["msg"])
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func (l *ledger) take(at time.Time, msg string) {
	if m := sandboxMade.FindStringSubmatch(msg); m != nil {
		l.sandboxes[m[3]] = owner{m[1], m[2]}
		return
	}
	if m := containerMade.FindStringSubmatch(msg); m != nil {
		c := l.of(m[3])
		c.sandbox, c.name, c.created = m[1], m[2], at
		return
	}
	if m := startAsked.FindStringSubmatch(msg); m != nil {
		switch c := l.of(m[1]); m[2] {
		case "":
			c.requested = at
		case " failed":
			c.failed = true
		default:
			c.running = at
		}
		return
	}
	if m := removeAsked.FindStringSubmatch(msg); m != nil {
		if c := l.of(m[1]); c.removed.IsZero() {
			c.removed = at
		}
		return
	}
	// Other processes in a container, such as an exec, have an ID of their own.
	if m := exitSeen.FindStringSubmatch(msg); m != nil && m[1] == m[2] {
		c := l.of(m[1])
		code, _ := strconv.ParseInt(m[3], 10, 32) // an empty text is 0
		seconds, _ := strconv.ParseInt(m[4], 10, 64)
		nanos, _ := strconv.ParseInt(m[5], 10, 64)
		c.exited, c.code = time.Unix(seconds, nanos), int32(code)
	}
}

func (l *ledger) of(id string) *logged {
	c := l.containers[id]
	if c == nil {
		c = &logged{id: id}
		l.containers[id] = c
	}
	return c
}

// complete adds the facts of the runtime's log to the history: the containers that existed only between two
// inspections, and the ends of those that were seen. That log lacks the containers' annotations; starts, from
// syncloop's log, replaces them.
func (h *history) complete(l *ledger, starts map[string][]logLine) {
	for _, i := range h.instances {
		l.sandboxes[i.sandbox] = owner{i.pod, i.uid}
	}
	for id, c := range l.containers {
		c.pod, c.uid = l.sandboxes[c.sandbox].pod, l.sandboxes[c.sandbox].uid
		i := h.instances[id]
		if i == nil {
			i = &instance{id: id, sandbox: c.sandbox, uid: c.uid, pod: c.pod, name: c.name, created: c.created,
				begun: c.running, unseen: true}
			if lines := starts[id]; len(lines) > 0 {
				i.count, i.cause = lines[0].count, lines[0].cause
			}
			h.instances[id] = i
		}
		i.started = i.started || !c.running.IsZero()
		i.requested, i.running, i.exited, i.removed = c.requested, c.running, c.exited, c.removed
		switch {
		case !c.exited.IsZero():
			i.ends = append(i.ends, end{c.code, reasonOf(c.code)})
		case c.failed:
			i.ends = append(i.ends, end{startErrorCode, startErrorReason})
		}
	}
}

// The exit code and the reason with which containerd reports a container that could not be started.
const (
	startErrorCode   = 128
	startErrorReason = "StartError"
)

// reasonOf returns containerd's reason for the exit code of a program.
func reasonOf(code int32) string {
	if code == 0 {
		return "Completed"
	}
	return "Error"
}

// overlaps returns the containers of which two instances ran at the same time by the runtime's log: each was running
// before the other had ended. A container without a logged end does not count.
func (h *history) overlaps() []string {
	byName := map[string][]*instance{}
	for _, i := range h.instances {
		if !i.running.IsZero() && !i.exited.IsZero() {
			byName[i.pod+"/"+i.name] = append(byName[i.pod+"/"+i.name], i)
		}
	}
	var twice []string
	for _, all := range byName {
		for n, a := range all {
			for _, b := range all[:n] {
				if a.running.Before(b.exited) && b.running.Before(a.exited) {
					twice = append(twice, fmt.Sprintf("two instances ran at once by the runtime's log: %s and %s", a, b))
				}
			}
		}
	}
	return twice
}
