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

// The causes that the log can name in such a run, see docs/explanation/pod-life.md, "Why a container was started". The
// pods have no probes and no rules that restart all containers.
const (
	causeFirst        = "first start"
	causeSpec         = "spec changed"
	causeSandbox      = "sandbox replaced"
	causeLost         = "the runtime has no record of the one before"
	causeNeverStarted = "created and never started"
	causeUnknown      = "state unknown"
	causeLife         = "the pod came back"
)

// said is the log's record of one start.
type logLine struct {
	count int
	cause string
}

var (
	field  = regexp.MustCompile(`(\S+?)=("(?:[^"\\]|\\.)*"|\S*)`)
	exited = regexp.MustCompile(`^exited with (\d+)(?: \((\w+)\))?$`)
)

// readStarts reads the lines that syncloop logs before it starts a container from all logs in a folder, by the
// container's ID. All services write to the same file over the whole run; there are also rotated files.
func readStarts(dir string) (map[string][]logLine, error) {
	files, err := filepath.Glob(filepath.Join(dir, "node.log*"))
	if err != nil {
		return nil, err
	}
	starts := map[string][]logLine{}
	for _, path := range files {
		if err := readStartsOf(path, starts); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return starts, nil
}

func readStartsOf(path string, starts map[string][]logLine) error {
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
		fields := fieldsOf(lines.Text())
		count, err := strconv.Atoi(fields["restart_count"])
		if err != nil {
			return fmt.Errorf("line %q: restart_count: %w", lines.Text(), err)
		}
		id := fields["container.id"]
		starts[id] = append(starts[id], logLine{count: count, cause: fields["cause"]})
	}
	return lines.Err()
}

// fieldsOf returns the fields of a log line by key.
func fieldsOf(line string) map[string]string {
	fields := map[string]string{}
	for _, match := range field.FindAllStringSubmatch(line, -1) {
		fields[match[1]] = match[2]
		if text, err := strconv.Unquote(match[2]); err == nil {
			fields[match[1]] = text
		}
	}
	return fields
}

// inquiry checks that every start has its cause.
type inquiry struct {
	starts map[string][]logLine
	deeds  *deeds

	problems []string
	// restarts is the number of checked restarts. unknown is the number of those whose previous container has no known
	// end, or may not have existed, because the runtime was dead then.
	restarts, unknown int
	// causes counts the causes of the checked starts.
	causes map[string]int
}

// maxUnknown is the largest percentage of restarts with an unknown past. A run of 577 restarts had 4, each of them of a
// container that was created or ended while the runtime was killed.
const maxUnknown = 5

// causes checks all containers that have run.
func (h *history) causes(starts map[string][]logLine, d *deeds) *inquiry {
	q := &inquiry{starts: starts, deeds: d, causes: map[string]int{}}
	for _, row := range h.rows() {
		for at, i := range row {
			if q.begun(i) {
				q.check(i, row[:at])
			}
		}
	}
	if minimum := 20; q.restarts > minimum && q.unknown*100 > q.restarts*maxUnknown {
		q.problems = append(q.problems, fmt.Sprintf("of %d restarts %d cannot be judged: what was before is in no log", q.restarts, q.unknown))
	}
	return q
}

func (q *inquiry) problem(i *instance, format string, args ...any) {
	q.problems = append(q.problems, i.String()+": "+fmt.Sprintf(format, args...))
}

// check checks a container that has run, with the earlier containers of its name in its pod.
func (q *inquiry) check(i *instance, before []*instance) {
	lines := q.starts[i.id]
	if len(lines) != 1 {
		q.problem(i, "the log has %d lines that it is started, want 1: %v", len(lines), lines)
		return
	}
	if want := (logLine{count: i.count, cause: i.cause}); lines[0] != want { // an unseen one has the log's values
		q.problem(i, "the log says %+v, and the container itself %+v", lines[0], want)
		return
	}
	q.causes[i.cause]++
	if i.uid == "" { // the runtime was killed before it logged the pod of the new sandbox
		q.unknown++
		return
	}
	if (i.cause == causeFirst) != (i.count == 0) || i.cause == "" {
		q.problem(i, "its cause is %q", i.cause)
		return
	}
	last, more := q.lastBegun(before)
	if i.count == 0 {
		if last != nil && !q.changedBetween(last, i) && !q.sameTurn(last, i) {
			q.problem(i, "it says that it is the first, and %s was before", last)
		}
		return
	}
	q.restarts++
	switch {
	case last != nil && i.count <= last.count && !q.changedBetween(last, i) && !q.sameTurn(last, i):
		q.problem(i, "%s was before, with no smaller count", last)
	case i.count > more && !q.runtimeKilledSince(last, i):
		q.problem(i, "its count has to be %d at most by what was before", more)
	case i.count > more, len(before) == 0: // one was created, and the runtime was killed before it logged that
		q.unknown++
	default:
		q.checkCause(i, before)
	}
}

// sameTurn reports whether a container has the count of the previous one because that has never run: its start was
// begun in a sandbox that was being removed, and with the sandbox the runtime has lost the container.
func (*inquiry) sameTurn(last, i *instance) bool {
	return i.count == last.count && !last.started && last.sandbox != i.sandbox
}

// begun reports whether the start of a container was begun, whether or not it has run.
func (q *inquiry) begun(i *instance) bool {
	return i.started || !i.requested.IsZero() || len(q.starts[i.id]) > 0
}

// lastBegun returns the last container whose start was begun, and the highest restart count of a container after all of
// them: each created one counts, including those that were never started.
func (q *inquiry) lastBegun(before []*instance) (last *instance, count int) {
	for _, i := range slices.Backward(before) {
		if q.begun(i) {
			return i, count + i.count + 1
		}
		count++
	}
	return nil, count
}

// runtimeKilledSince reports whether the runtime was killed between the creation of two containers; last may be nil.
func (q *inquiry) runtimeKilledSince(last, i *instance) bool {
	if last == nil {
		last = &instance{}
	}
	return between(last, i, q.deeds.runtimeKilled)
}

// checkCause checks each part of the logged cause of a restart. The cause refers to the previous container. If that was
// only created, a syncloop that was killed may have removed it, and the cause refers to the one before.
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

// causeWrong returns the error in the cause of a restart if it refers to the given previous container; "" when it is
// true.
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
			known := !before.unseen && !i.unseen
			if known && before.spec == i.spec || !q.changedBetween(before, i) {
				wrong = "it was made from the same"
			}
		case name == causeLife:
			if before.sandbox == i.sandbox || !q.changedBetween(before, i) {
				wrong = "its pod was not removed"
			}
		case name == causeSandbox:
			wrong = q.sandboxWrong(i, before)
		case name == causeLost:
			// One that never started is removed to be replaced, which fails while the runtime is away.
			replaced := !before.started && !before.removed.IsZero()
			if !replaced && !q.deeds.removed[before.id] && !q.deeds.removed[before.sandbox] && !q.cutShort(i, before) {
				wrong = "the test has not removed it"
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

// sandboxWrong returns the error in the cause "new sandbox": the previous sandbox must have been ended by the test, or
// the runtime was killed while it was created.
func (q *inquiry) sandboxWrong(i, before *instance) string {
	switch {
	case before.sandbox == i.sandbox:
		return "it is in the same sandbox"
	case q.ofEarlierLife(i, before):
	case !q.deeds.ended[before.sandbox] && !during(before, q.deeds.runtimeKilled):
		return "the test has not ended the sandbox " + before.sandbox
	}
	return ""
}

// ofEarlierLife reports whether the previous container may have ended with an earlier life of its pod, because the
// manifest was removed and written again. If syncloop was killed meanwhile, the pod may go on in the same sandbox.
func (q *inquiry) ofEarlierLife(i, before *instance) bool {
	return q.notedBetween(q.deeds.taken, before, i) || before.sandbox != i.sandbox && q.changedBetween(before, i)
}

// cutShort reports whether the node itself has removed the previous container, and it or the runtime was killed before
// the next one existed. The next step (a replacement, or the rest of a pod's removal) is then taken by a syncloop that
// no longer finds the container.
func (q *inquiry) cutShort(i, before *instance) bool {
	const about = 500 * time.Millisecond
	return !before.removed.IsZero() &&
		slices.ContainsFunc(slices.Concat(q.deeds.runtimeKilled, q.deeds.callerKilled), func(at time.Time) bool {
			return at.After(before.removed.Add(-about)) && at.Before(i.created)
		})
}

// endWrong returns the error in a cause that is an end of a container: the end must be the real one, and must itself
// have a cause.
func (q *inquiry) endWrong(i, before *instance, lines []string) string {
	// The runtime was killed before it recorded that end, or while it made the container.
	lost := lines[2] == "Unknown" && (q.runtimeKilledSince(before, i) || during(before, q.deeds.runtimeKilled))
	switch {
	case slices.ContainsFunc(before.ends, func(e end) bool {
		return lines[1] == fmt.Sprint(e.code) && lines[2] == e.reason
	}), lost:
	case len(before.ends) > 0:
		return fmt.Sprintf("it exited with %v", before.ends)
	case !q.runtimeKilledSince(before, i):
		return "nothing has told of its end"
	default:
		q.unknown++
	}
	code, ends := endsBy(before.name)
	switch {
	case ends && lines[1] == fmt.Sprint(code):
		return ""
	case ends && lost:
		return ""
	case q.deeds.ended[before.id], q.deeds.ended[before.sandbox], during(before, q.deeds.runtimeKilled),
		strings.HasPrefix(i.cause, causeSpec), q.ofEarlierLife(i, before):
		return ""
	// containerd gives up a start when its client is gone
	case lines[2] == startErrorReason && during(before, q.deeds.callerKilled):
		return ""
	}
	return "the test has not ended it"
}

// endsBy returns the exit code with which the program of a container ends by itself, if it does.
func endsBy(container string) (code int, ends bool) {
	switch container {
	case failing:
		return 1, true
	case first, second, done:
		return 0, true
	}
	return 0, false
}

// during reports whether one of the kills was during the creation or the start of a container. If it was a kill of the
// runtime, the runtime's record of the container can have any content.
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

// between reports whether one of the times is between the creation of two containers.
func between(a, b *instance, times []time.Time) bool {
	return slices.ContainsFunc(times, func(at time.Time) bool { return at.After(a.created) && at.Before(b.created) })
}

// changedBetween reports whether the manifest of a pod was written or removed between the creation of two of its
// containers, or so shortly before the first that the node may not have read it.
func (q *inquiry) changedBetween(a, b *instance) bool { return q.notedBetween(q.deeds.changed, a, b) }

// notedBetween is changedBetween for some changes of manifests.
func (*inquiry) notedBetween(changes map[string][]time.Time, a, b *instance) bool {
	const unknown = 30 * time.Second // the node may be dead for some time, and then reads everything again
	name, _, _ := strings.Cut(b.pod, "-")
	return slices.ContainsFunc(changes[name], func(at time.Time) bool {
		return at.After(a.created.Add(-unknown)) && at.Before(b.created)
	})
}
