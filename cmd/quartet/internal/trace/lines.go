package trace

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// start is the last start of a pod for the output.
type start struct {
	pod     subject
	traceID string
	// link is the URL of the trace in Jaeger's user interface.
	link string
	// now is the present time, for the age of the start.
	now time.Time

	tree *tree
	// window is the start, and scale the range of the bars: the start, or the whole trace if that is requested.
	window window
	scale  scale
	// slow is the slowest step, and self its self time; slow is nil if there is none.
	slow *node
	self time.Duration
	// idle is the longest gap.
	idle gap
	// hidden is the number of spans that began after Ready and are not in the tree.
	hidden int
}

// newStart finds the start of a pod in its trace. It omits spans that begin after Ready, unless all is set.
func newStart(pod subject, t trace, all bool) start {
	s := start{pod: pod, traceID: t.id, tree: grow(t.spans)}
	s.window = windowOf(s.tree, pod)
	s.slow, s.self = slowest(s.tree, s.window)
	s.idle = longest(gapsOf(s.tree, s.window))
	drawn := s.window
	switch {
	case s.window.ready == nil:
	case all:
		s.tree.each(func(n *node) {
			if n.end.After(drawn.to) {
				drawn.to = n.end
			}
		})
	default:
		s.hidden = s.tree.prune(s.window.to)
	}
	s.scale = scaleOf(drawn, gapsOf(s.tree, drawn))
	return s
}

// complete reports whether the pod is Ready and no span lacks its parent: then the spans of other processes have
// arrived too, or never will.
func (s start) complete() bool { return s.window.ready != nil && len(s.tree.orphans) == 0 }

// line is one span in the output.
type line struct {
	*node
	title string
	// depth is the number of its ancestors.
	depth int
	// offset is its start relative to the first span.
	offset time.Duration
	// slow is true for the slowest step.
	slow bool
	// notes are the remarks below it.
	notes []note
}

// note is a remark on a span.
type note struct {
	kind noteKind
	text string
}

type noteKind int

const (
	noteError noteKind = iota
	noteLink
	noteClock
)

// skewShown is the minimum time by which a child must begin before its parent to be remarked on: the runtime's times
// and those of spans differ by less.
const skewShown = time.Millisecond

// lines returns the lines of spans and their descendants.
func (s start) lines(tops []*node) []line {
	type place struct {
		*node
		depth int
	}
	var stack []place
	push := func(nodes []*node, depth int) {
		for i := len(nodes) - 1; i >= 0; i-- {
			stack = append(stack, place{nodes[i], depth})
		}
	}
	push(tops, 0)
	firstAt := make(map[string]time.Duration)
	var lines []line
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		l := line{
			node:   p.node,
			title:  title(p.span),
			depth:  p.depth,
			offset: p.start.Sub(s.window.from),
			slow:   p.node == s.slow,
		}
		if p.failed {
			l.notes = append(l.notes, note{noteError, reason(l, firstAt)})
		}
		l.notes = append(l.notes, remarks(p.node)...)
		lines = append(lines, l)
		push(p.below, p.depth+1)
	}
	return lines
}

// reason returns why a span failed. It refers to a descendant or an earlier line with the same reason instead of
// repeating it.
func reason(l line, firstAt map[string]time.Duration) string {
	text := oneLine(l.message)
	for _, child := range l.below {
		below := oneLine(child.message)
		switch own, found := strings.CutSuffix(text, below); {
		case !child.failed || below == "" || !found:
		case own == "":
			return "as below"
		default:
			return own + "…"
		}
	}
	if text == "" {
		return "failed, without saying why"
	}
	if at, known := firstAt[text]; known {
		return "as at " + length(at)
	}
	firstAt[text] = l.offset
	return text
}

// remarks returns the links of a span, and oddities of its times.
func remarks(n *node) []note {
	var notes []note
	for _, id := range n.links {
		notes = append(notes, note{noteLink, oneLine(relation(n.span) + ": trace " + id)})
	}
	if n.above != nil {
		if early := n.above.start.Sub(n.start); early > skewShown {
			notes = append(
				notes,
				note{
					noteClock,
					fmt.Sprintf(
						"begins %s before the span that it is part of: their clocks differ, or the clock was set",
						length(early),
					),
				},
			)
		}
	}
	return notes
}

// relation describes the target of a span's link.
func relation(s *span) string {
	switch {
	case s.name == spanCreate:
		return "the container's last start"
	case s.attributes[string(telemetry.AttrEvent)] != "ContainerDied":
		return "linked to"
	}
	switch code := s.attributes[string(telemetry.AttrExitCode)]; code {
	case "":
		return "after crash"
	case "0":
		return "after exit"
	default:
		return "after crash with exit code " + code
	}
}

// length formats a duration.
func length(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + length(-d)
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// oneLine joins the lines of a text and removes control characters.
func oneLine(text string) string {
	return strings.Join(
		strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }),
		" ",
	)
}

// title returns the readable name of a span: a call without the package of its service, a step with its container.
func title(s *span) string {
	name := oneLine(s.name)
	if service, method, isCall := strings.Cut(name, "/"); isCall {
		return service[strings.LastIndex(service, ".")+1:] + "/" + method
	}
	if reason := oneLine(s.attributes[string(telemetry.AttrWait)]); isWait(s) && reason != "" {
		return name + " for " + reason
	}
	if container := oneLine(s.attributes[string(semconv.K8SContainerNameKey)]); container != "" {
		return name + " " + container
	}
	return name
}

// shorten shortens a name: first the service of a call, then the end.
func shorten(name string, width int, ellipsis string) string {
	if utf8.RuneCountInString(name) <= width {
		return name
	}
	if _, method, isCall := strings.Cut(name, "/"); isCall {
		return shorten(method, width, ellipsis)
	}
	keep := max(width-utf8.RuneCountInString(ellipsis), 0)
	return string([]rune(name)[:keep]) + ellipsis
}

// wrap breaks a text into lines at blanks; a longer word stays whole.
func wrap(text string, width int) []string {
	var lines []string
	current := ""
	for _, word := range strings.Fields(text) {
		switch {
		case current == "":
			current = word
		case utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) <= width:
			current += " " + word
		default:
			lines = append(lines, current)
			current = word
		}
	}
	return append(lines, current)
}
