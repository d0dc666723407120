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

// logged is what the runtime's own log has of one container. It is there whoever looked, and as soon as it happens: the runtime
// writes that a call has worked before it answers it.
type logged struct {
	id, sandbox string
	// uid and pod are set by complete; empty when the runtime was killed before it had told that it had made the sandbox, and nobody
	// has seen it.
	uid, pod, name string
	created        time.Time
	// asked is when it was to be started, running when that had worked, failed is true when it had not; zero when that was never
	// told.
	asked, running time.Time
	failed         bool
	// removed is when it was first to be removed, by whomever; zero when it was not. Who comes after one that was killed over it asks
	// again, and is told that it is being removed.
	removed time.Time
	// exited is when its program has ended, with this code; zero when the runtime was dead then.
	exited time.Time
	code   int32
}

// What the runtime's log says of sandboxes and containers.
var (
	sandboxMade   = regexp.MustCompile(`^RunPodSandbox for name:"([^"]*)" uid:"([^"]*)" .*returns sandbox id "([^"]*)"`)
	containerMade = regexp.MustCompile(`^CreateContainer within sandbox "([^"]*)" for name:"([^"]*)".* returns container id "([^"]*)"`)
	startAsked    = regexp.MustCompile(`^StartContainer for "([^"]*)"( returns successfully| failed)?$`)
	removeAsked   = regexp.MustCompile(`^RemoveContainer for "([^"]*)"$`)
	exitSeen      = regexp.MustCompile(`^received container exit event container_id:"([^"]*)" id:"([^"]*)"(?: pid:\d+)?(?: exit_status:(\d+))? ` +
		`exited_at:\{(?:seconds:(\d+))?(?: nanos:(\d+))?\}`)
)

// ledger is what the runtime's log has of all containers, by their IDs.
type ledger struct {
	containers map[string]*logged
	sandboxes  map[string]owner
}

// owner is the pod that a sandbox is of.
type owner struct{ pod, uid string }

// readRuntimeLog reads the log of a containerd, over all times that it was killed and started.
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
			continue // cut off by a kill
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
			c.asked = at
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
	// What runs in a container besides its program has another ID.
	if m := exitSeen.FindStringSubmatch(msg); m != nil && m[1] == m[2] {
		c := l.of(m[1])
		code, _ := strconv.ParseInt(m[3], 10, 32) // nothing is 0
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

// complete adds what the runtime's log has to what was seen: the containers that came and went between two looks, and how those
// that were seen have ended. What a container says of itself is not in that log; starts, from syncloop's, stands in for it.
func (h *history) complete(l *ledger, starts map[string][]said) {
	for _, i := range h.instances {
		l.sandboxes[i.sandbox] = owner{i.pod, i.uid}
	}
	for id, c := range l.containers {
		c.pod, c.uid = l.sandboxes[c.sandbox].pod, l.sandboxes[c.sandbox].uid
		i := h.instances[id]
		if i == nil {
			i = &instance{id: id, sandbox: c.sandbox, uid: c.uid, pod: c.pod, name: c.name, created: c.created, begun: c.running, unseen: true}
			if lines := starts[id]; len(lines) > 0 {
				i.count, i.cause = lines[0].count, lines[0].cause
			}
			h.instances[id] = i
		}
		i.started = i.started || !c.running.IsZero()
		i.asked, i.running, i.exited, i.removed = c.asked, c.running, c.exited, c.removed
		switch {
		case !c.exited.IsZero():
			i.ends = append(i.ends, end{c.code, reasonOf(c.code)})
		case c.failed:
			i.ends = append(i.ends, end{startErrorCode, startErrorReason})
		}
	}
}

// What containerd says of a container that could not be started.
const (
	startErrorCode   = 128
	startErrorReason = "StartError"
)

// reasonOf is what containerd makes of the code of a program that has ended.
func reasonOf(code int32) string {
	if code == 0 {
		return "Completed"
	}
	return "Error"
}

// overlaps says which containers ran as two instances at once by the runtime's log: each of the two was running before the other had
// ended. One whose end no log has says nothing.
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
