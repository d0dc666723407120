package chaos

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The causes that the log can name in such a run, see docs/operating.md, "Why a container was started". There are no probes
// in it and no rules that restart all containers.
const (
	causeFirst        = "first start"
	causeSpec         = "spec changed"
	causeSandbox      = "sandbox replaced"
	causeLost         = "the runtime has no record of the one before"
	causeNeverStarted = "created and never started"
	causeUnknown      = "state unknown"
)

// said is what the log says of one start.
type said struct {
	count int
	cause string
}

var (
	field  = regexp.MustCompile(`(\S+?)=("(?:[^"\\]|\\.)*"|\S*)`)
	exited = regexp.MustCompile(`^exited with (\d+)(?: \((\w+)\))?$`)
)

// readStarts reads, from all logs in a folder, the lines that syncloop writes before it starts a container, by its ID. All
// services of all times write to the same file, or to one that was put aside.
func readStarts(dir string) (map[string][]said, error) {
	files, err := filepath.Glob(filepath.Join(dir, "node.log*"))
	if err != nil {
		return nil, err
	}
	starts := map[string][]said{}
	for _, path := range files {
		if err := readStartsOf(path, starts); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return starts, nil
}

func readStartsOf(path string, starts map[string][]said) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), `msg="starting a container"`) {
			continue
		}
		fields := map[string]string{}
		for _, match := range field.FindAllStringSubmatch(lines.Text(), -1) {
			fields[match[1]] = match[2]
			if text, err := strconv.Unquote(match[2]); err == nil {
				fields[match[1]] = text
			}
		}
		count, err := strconv.Atoi(fields["restart_count"])
		if err != nil {
			return fmt.Errorf("line %q: restart_count: %w", lines.Text(), err)
		}
		id := fields["container.id"]
		starts[id] = append(starts[id], said{count: count, cause: fields["cause"]})
	}
	return lines.Err()
}

// inquiry checks that every start has its cause.
type inquiry struct {
	starts map[string][]said
	deeds  *deeds

	problems []string
	// restarts is how many were looked into, unseen of how many of them the one before or its end was not seen: it was gone before
	// the next look.
	restarts, unseen int
	// causes counts the causes of what was looked into.
	causes map[string]int
}

// causes checks all that has run.
func (h *history) causes(starts map[string][]said, d *deeds) *inquiry {
	q := &inquiry{starts: starts, deeds: d, causes: map[string]int{}}
	for _, row := range h.rows() {
		for at, i := range row {
			if q.begun(i) {
				q.check(i, row[:at])
			}
		}
	}
	if enough := 20; q.restarts > enough && q.unseen > q.restarts/2 {
		q.problems = append(q.problems, fmt.Sprintf("of %d restarts %d cannot be judged, for the one before was not seen", q.restarts, q.unseen))
	}
	return q
}

func (q *inquiry) problem(i *instance, format string, args ...any) {
	q.problems = append(q.problems, i.String()+": "+fmt.Sprintf(format, args...))
}

// check checks one that has run, with those of its name in its pod before it.
func (q *inquiry) check(i *instance, before []*instance) {
	lines := q.starts[i.id]
	if len(lines) != 1 {
		q.problem(i, "the log has %d lines that it is started, want 1: %v", len(lines), lines)
		return
	}
	if want := (said{count: i.count, cause: i.cause}); lines[0] != want {
		q.problem(i, "the log says %+v, and the container itself %+v", lines[0], want)
		return
	}
	q.causes[i.cause]++
	if (i.cause == causeFirst) != (i.count == 0) || i.cause == "" {
		q.problem(i, "its cause is %q", i.cause)
		return
	}
	last := q.lastBegun(before)
	if i.count == 0 {
		if last != nil && !q.changedBetween(last, i) {
			q.problem(i, "it says that it is the first, and %s was before", last)
		}
		return
	}
	q.restarts++
	switch {
	case last != nil && i.count <= last.count && !q.changedBetween(last, i):
		q.problem(i, "%s was before, with no smaller count", last)
	case len(before) == 0 || before[len(before)-1].count < i.count-1: // the one before was gone again before the next look
		q.unseen++
	default:
		q.checkCause(i, before)
	}
}

// begun says whether the start of one was begun, whether or not it has come to run.
func (q *inquiry) begun(i *instance) bool { return i.started || len(q.starts[i.id]) > 0 }

func (q *inquiry) lastBegun(before []*instance) *instance {
	for _, i := range slices.Backward(before) {
		if q.begun(i) {
			return i
		}
	}
	return nil
}

// checkCause checks each part of what is said to have caused a restart. It is about the one before; when that was created and no
// more, it may have been removed again by a syncloop that was then killed, and the cause is about one before that.
func (q *inquiry) checkCause(i *instance, before []*instance) {
	wrong := ""
	for _, one := range slices.Backward(before) {
		found := q.causeWrong(i, one)
		if found == "" {
			return
		}
		if wrong == "" {
			wrong = fmt.Sprintf("%s; before it was %s", found, one)
		}
		if q.begun(one) {
			break
		}
	}
	q.problem(i, "started because %q, but %s", i.cause, wrong)
}

// causeWrong says what is wrong with the cause of a restart, if it is to be about one container before; nothing when it is true.
func (q *inquiry) causeWrong(i, before *instance) string {
	for part := range strings.SplitSeq(i.cause, ", ") {
		name, _, _ := strings.Cut(part, " (")
		end := exited.FindStringSubmatch(part)
		wrong := ""
		switch {
		case name == causeNeverStarted && before.started:
			wrong = "it has run"
		case name == causeNeverStarted:
		case name == causeSpec:
			if before.spec == i.spec || !q.changedBetween(before, i) {
				wrong = "it was made from the same"
			}
		case name == causeSandbox:
			wrong = q.sandboxWrong(i, before)
		case name == causeLost:
			if !q.deeds.removed[before.id] && !q.deeds.removed[before.sandbox] {
				wrong = "nobody has removed it"
			}
		case end != nil:
			wrong = q.endWrong(i, before, end)
		case name == causeUnknown && during(before, q.deeds.runtimeKilled):
		default:
			wrong = "there is no such cause in this run"
		}
		if wrong != "" {
			return wrong
		}
	}
	return ""
}

// sandboxWrong says what is wrong with that a pod has got another sandbox: somebody must have ended the one before, or the runtime
// was killed when it was made.
func (q *inquiry) sandboxWrong(i, before *instance) string {
	switch {
	case before.sandbox == i.sandbox:
		return "it is in the same sandbox"
	case !q.deeds.ended[before.sandbox] && !during(before, q.deeds.runtimeKilled):
		return "nobody has ended the sandbox " + before.sandbox
	}
	return ""
}

// endWrong says what is wrong with an end that is said to have been a cause: it must have been that end, and there must be
// something that has brought it about.
func (q *inquiry) endWrong(i, before *instance, said []string) string {
	if !before.ended {
		q.unseen++
	} else if said[1] != fmt.Sprint(before.code) || said[2] != before.reason {
		return fmt.Sprintf("it exited with %d (%s)", before.code, before.reason)
	}
	code, ends := endsBy(before.name)
	switch {
	case ends && said[1] == fmt.Sprint(code):
		return ""
	case ends && said[2] == "Unknown" && between(before, i, q.deeds.runtimeKilled): // it was killed before it had noted that end
		return ""
	case q.deeds.ended[before.id], q.deeds.ended[before.sandbox], during(before, q.deeds.runtimeKilled), strings.HasPrefix(i.cause, causeSpec):
		return ""
	case said[2] == "StartError" && during(before, q.deeds.callerKilled): // containerd gives a start up when its caller is gone
		return ""
	}
	return "nobody has ended it"
}

// endsBy says with which code the program of a container ends by itself, if it does.
func endsBy(container string) (code int, ends bool) {
	switch container {
	case failing:
		return 1, true
	case first, second, done:
		return 0, true
	}
	return 0, false
}

// during says whether one of the kills was while a container was made or started. If it was of the runtime, what that then has of the
// container can be anything.
func during(i *instance, kills []time.Time) bool {
	const about = 500 * time.Millisecond
	until := i.created.Add(20 * about)
	if !i.begun.IsZero() {
		until = i.begun.Add(about)
	}
	return slices.ContainsFunc(kills, func(at time.Time) bool {
		return at.After(i.created.Add(-about)) && at.Before(until)
	})
}

// between says whether one of some times is between the creation of two containers.
func between(a, b *instance, times []time.Time) bool {
	return slices.ContainsFunc(times, func(at time.Time) bool { return at.After(a.created) && at.Before(b.created) })
}

// changedBetween says whether the manifest of a pod was written or removed between the creation of two of its containers, or so
// short before the first that the node may not have known.
func (q *inquiry) changedBetween(a, b *instance) bool {
	const unknown = 30 * time.Second // the node is dead for some time, and then reads everything anew
	name, _, _ := strings.Cut(b.pod, "-")
	return slices.ContainsFunc(q.deeds.changed[name], func(at time.Time) bool {
		return at.After(a.created.Add(-unknown)) && at.Before(b.created)
	})
}
