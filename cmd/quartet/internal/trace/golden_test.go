package trace

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	// Times are printed in the local zone.
	time.Local = time.UTC
	goleak.VerifyTestMain(m)
}

// noon is the begin of the tests' traces; they are shown three minutes later.
var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// Each file of testdata is a trace and what is shown of it, parted by a line of dashes. A span is a line "SERVICE NAME
// BEGIN LENGTH", in milliseconds, below its parent by its indentation, and then what else is to be said of it:
//
//	error="why"         it failed
//	link=ID             it is linked to another trace
//	parent=ID           its parent is a span that is not there
//	id=ID               to be named by the file's first lines
//	KEY=VALUE           an attribute
//
// Lines before the first span are how it is looked at: "width 80", "ascii", "color", "all", "created ID".
func TestWhatIsShown(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no files", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(data), "\n----\n")
			given := parse(t, input)
			s := newStart(given.pod, trace{id: "4bf92f3577b34da6a3ce929d0e0e4736", spans: given.spans}, given.all)
			s.link, s.now = "http://127.0.0.1:16686/trace/4bf92f3577b34da6a3ce929d0e0e4736", noon.Add(3*time.Minute)
			got := draw(s, given.style)
			got = strings.ReplaceAll(got, "\x1b", "^")
			if *update {
				if err := os.WriteFile(path, []byte(input+"\n----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// given is a trace and how it is looked at.
type given struct {
	pod   subject
	spans []*span
	style style
	all   bool
}

func parse(t *testing.T, text string) given {
	t.Helper()
	g := given{pod: subject{namespace: "default", name: "hello-node-1", uid: "5d3c1b7e"}, style: style{width: 110}}
	var above []*span
	for i, text := range strings.Split(text, "\n") {
		words := strings.Fields(text)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "width":
			g.style.width = int(number(t, words[1]))
		case words[0] == "ascii":
			g.style.ascii = true
		case words[0] == "color":
			g.style.color = true
		case words[0] == "all":
			g.all = true
		case words[0] == "created":
			g.pod.span = words[1]
		default:
			depth := (len(text) - len(strings.TrimLeft(text, " "))) / 2
			s := parseSpan(t, fmt.Sprintf("%016d", i+1), strings.TrimSpace(text))
			if depth > 0 {
				s.parent = above[depth-1].id
			}
			above = append(above[:depth], s)
			g.spans = append(g.spans, s)
		}
	}
	return g
}

func parseSpan(t *testing.T, id, text string) *span {
	t.Helper()
	text, why, failed := strings.Cut(text, ` error="`)
	words := strings.Fields(text)
	if len(words) < 4 {
		t.Fatalf("%q is not SERVICE NAME BEGIN LENGTH", text)
	}
	s := &span{
		id:         id,
		service:    words[0],
		name:       words[1],
		attributes: map[string]string{},
		failed:     failed,
		message:    strings.TrimSuffix(why, `"`),
	}
	s.start = noon.Add(time.Duration(number(t, words[2]) * float64(time.Millisecond)))
	s.end = s.start.Add(time.Duration(number(t, words[3]) * float64(time.Millisecond)))
	for _, word := range words[4:] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "link":
			s.links = append(s.links, value)
		case "parent":
			s.parent = value
		case "id":
			s.id = value
		default:
			s.attributes[key] = value
		}
	}
	return s
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
