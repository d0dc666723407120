package trace

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// style is the capabilities of the output.
type style struct {
	// width of a line in characters.
	width int
	ascii bool
	color bool
}

// glyphs are the non-letter characters.
type glyphs struct {
	bar, sliver, wait, cut, fail, link, clock, ellipsis, slowLeft, slowRight string
}

func (s style) glyphs() glyphs {
	if s.ascii {
		return glyphs{
			bar:       "#",
			sliver:    "|",
			wait:      ".",
			cut:       ">",
			fail:      "!",
			link:      "->",
			clock:     "?",
			ellipsis:  "..",
			slowLeft:  "< ",
			slowRight: " >",
		}
	}
	return glyphs{
		bar:       "█",
		sliver:    "▏",
		wait:      "┄",
		cut:       "▶",
		fail:      "✗",
		link:      "↳",
		clock:     "?",
		ellipsis:  "…",
		slowLeft:  "◄ ",
		slowRight: " ►",
	}
}

// The colors, as terminal sequences.
const (
	colorError = "\x1b[31m"
	colorSlow  = "\x1b[1;33m"
	colorFaint = "\x1b[2m"
	colorOff   = "\x1b[0m"
)

// paint colors a text; a no-op for an empty color.
func (s style) paint(color, text string) string {
	if !s.color || color == "" || text == "" {
		return text
	}
	return color + text + colorOff
}

// columns are the widths of the parts of a line. A part of width 0 is omitted.
type columns struct {
	indent, name, service, offset, duration, bar int
}

const (
	// The space between two parts.
	space = 2
	// The minimum widths of a bar and a name.
	minBar, minName = 10, 16
	// The maximum indentation of a child, less if the tree is deep for the width.
	maxIndent = 2
)

// layOut chooses the columns for lines. Names shrink first, then bars and then services are omitted; the name and the
// duration of a span always stay.
func layOut(lines []line, width int) columns {
	var c columns
	for _, l := range lines {
		c.indent = max(c.indent, l.depth)
		c.service = max(c.service, utf8.RuneCountInString(oneLine(l.service)))
		c.offset = max(c.offset, len(length(l.offset)))
		c.duration = max(c.duration, len(length(l.duration())))
	}
	c.service = min(c.service, minName)
	c.indent = min(maxIndent, max(width/4, 1)/max(c.indent, 1))
	for _, l := range lines {
		c.name = max(c.name, l.depth*c.indent+utf8.RuneCountInString(l.title))
	}
	free := width - space - c.offset - space - c.duration
	if rest := free - space - c.service - space; rest >= minName+minBar {
		c.name = min(c.name, rest-max(minBar, rest/3))
		c.bar = rest - c.name
		return c
	}
	if rest := free - space - c.service; rest >= minName {
		c.name = min(c.name, rest)
		return c
	}
	c.service = 0
	c.name = max(min(c.name, free), minName)
	return c
}

// drawing draws a start.
type drawing struct {
	start
	style   style
	glyphs  glyphs
	columns columns
	out     strings.Builder
}

// draw returns a start as text.
func draw(s start, st style) string {
	d := &drawing{start: s, style: st, glyphs: st.glyphs()}
	roots, orphans := s.lines(s.tree.roots), s.lines(s.tree.orphans)
	d.columns = layOut(slices.Concat(roots, orphans), st.width)
	d.header()
	d.out.WriteByte('\n')
	for _, l := range roots {
		d.line(l)
	}
	if len(orphans) > 0 {
		if len(roots) > 0 {
			d.out.WriteByte('\n')
		}
		d.prose(
			"",
			"orphans: spans below one that is not in the trace, because it has not arrived yet or was never sent",
			colorError,
		)
		for _, l := range orphans {
			d.line(l)
		}
	}
	d.footer()
	return d.out.String()
}

func (d *drawing) header() {
	name := d.pod.name
	if d.pod.namespace != metav1.NamespaceDefault {
		name = d.pod.namespace + "/" + name
	}
	d.field("pod", name)
	if d.pod.uid != "" {
		d.field("uid", d.pod.uid)
	}
	d.field("trace", d.traceID)
	d.field(
		"began",
		fmt.Sprintf(
			"%s (%s ago)",
			d.window.from.Local().Format("2006-01-02 15:04:05.000 -07:00"),
			duration.HumanDuration(d.now.Sub(d.window.from)),
		),
	)
	if d.window.ready != nil {
		d.field("Ready", "after "+length(d.window.length()))
	} else {
		d.field("Ready", "not in this trace, whose last span ends after "+length(d.window.length()))
	}
	if d.slow != nil {
		d.field("slowest", fmt.Sprintf("%s of %s: %s", title(d.slow.span), oneLine(d.slow.service), length(d.self)))
	}
	d.field("Jaeger", d.link)
}

func (d *drawing) field(name, value string) {
	fmt.Fprintf(&d.out, "%-8s %s\n", name, oneLine(value))
}

// line writes one span.
func (d *drawing) line(l line) {
	c := d.columns
	// The indentation of a deep span shrinks so that its name stays recognizable.
	deep := min(l.depth*c.indent, max(c.name-min(utf8.RuneCountInString(l.title), minName), 0))
	indent := strings.Repeat(" ", deep)
	name := indent + shorten(l.title, c.name-deep, d.glyphs.ellipsis)
	color := ""
	switch {
	case l.slow:
		color = colorSlow
	case l.failed:
		color = colorError
	}
	var b strings.Builder
	b.WriteString(d.style.paint(color, pad(name, c.name)))
	if c.service > 0 {
		b.WriteString(
			strings.Repeat(
				" ",
				space,
			) + d.style.paint(
				colorFaint,
				pad(shorten(oneLine(l.service), c.service, d.glyphs.ellipsis), c.service),
			),
		)
	}
	fmt.Fprintf(&b, "%*s%*s", space+c.offset, length(l.offset), space+c.duration, length(l.duration()))
	mark := ""
	if l.slow {
		mark = "slowest: " + length(d.self)
	}
	if c.bar > 0 {
		bar, held := d.bar(l.node, mark)
		b.WriteString(strings.Repeat(" ", space) + d.style.paint(color, bar))
		if held {
			mark = ""
		}
	}
	d.out.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	if mark != "" {
		d.prose(indent+"  ", d.glyphs.slowLeft+mark, colorSlow)
	}
	for _, n := range l.notes {
		d.note(indent+"  ", n)
	}
}

func (d *drawing) note(indent string, n note) {
	switch n.kind {
	case noteError:
		d.prose(indent, d.glyphs.fail+" "+n.text, colorError)
	case noteLink:
		d.prose(indent, d.glyphs.link+" "+n.text, "")
	case noteClock:
		d.prose(indent, d.glyphs.clock+" "+n.text, "")
	}
}

// prose writes a text below its span, wrapped.
func (d *drawing) prose(indent, text, color string) {
	for i, part := range wrap(text, max(d.style.width-len(indent)-space, minName)) {
		if i > 0 {
			part = "  " + part
		}
		d.out.WriteString(indent + d.style.paint(color, part) + "\n")
	}
}

// bar draws a span to the scale of the start. The mark of the slowest is right of its bar, or left of it; held is false
// if there is no room for it.
func (d *drawing) bar(n *node, mark string) (bar string, held bool) {
	columns := float64(d.columns.bar)
	begin, end := d.scale.position(n.start)*columns, d.scale.position(n.end)*columns
	from := min(int(begin), d.columns.bar-1)
	text, fill := d.glyphs.sliver, d.glyphs.bar
	if isWait(n.span) {
		text, fill = d.glyphs.wait, d.glyphs.wait
	}
	switch {
	case n.end.After(d.scale.to):
		// It continues beyond the drawn part.
		text = strings.Repeat(fill, d.columns.bar-1-from) + d.glyphs.cut
	case end-begin >= 0.5:
		text = strings.Repeat(fill, max(int(end)-from, 1))
	}
	to := from + utf8.RuneCountInString(text)
	right, left := " "+d.glyphs.slowLeft+mark, mark+d.glyphs.slowRight+" "
	switch {
	case mark == "":
		return strings.Repeat(" ", from) + text, true
	case to+utf8.RuneCountInString(right) <= d.columns.bar:
		return strings.Repeat(" ", from) + text + right, true
	case utf8.RuneCountInString(left) <= from:
		return pad("", from-utf8.RuneCountInString(left)) + left + text, true
	default:
		return strings.Repeat(" ", from) + text, false
	}
}

// footer writes a summary.
func (d *drawing) footer() {
	var notes []string
	if whole, idle := d.window.length(), d.idle.length(); idle > whole/10 && idle > 10*time.Millisecond {
		why := "no span says why"
		if len(d.idle.reasons) > 0 {
			why = "the pod waited for " + oneLine(strings.Join(d.idle.reasons, "; "))
		}
		notes = append(
			notes,
			fmt.Sprintf("nothing was done for %s from %s on: %s", length(idle), length(d.idle.from.Sub(d.window.from)), why),
		)
	}
	if n := len(d.scale.long); n > 0 {
		notes = append(notes, fmt.Sprintf("the bars shorten %s in which nothing was done", count(n, "gap")))
	}
	if d.hidden > 0 {
		notes = append(
			notes,
			fmt.Sprintf("%s began after Ready, and %s shown with --all", count(d.hidden, "span"), isAre(d.hidden)),
		)
	}
	if len(notes) > 0 {
		d.out.WriteByte('\n')
	}
	for _, n := range notes {
		d.prose("", n, "")
	}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}

// print writes a start to a stream.
func (s start) print(out io.Writer, st style) error {
	_, err := io.WriteString(out, draw(s, st))
	return err
}
