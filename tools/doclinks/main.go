// Command doclinks checks the Markdown files of a repository without a network: every relative link leads to a file,
// every fragment to a heading, every document with a paragraph "**Contents:**" lists its sections there, every test
// that a document names exists, and so does every document that code names. "make lint" runs it on the files that git
// tracks.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run checks the files of the repository that dir is in.
func run(dir string) error {
	top, err := git(dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(top)
	files, err := git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md")
	if err != nil {
		return err
	}
	funcs, err := git(root, "grep", "--untracked", "-hoE", "^func Test[A-Za-z0-9_]+", "--", "*_test.go")
	if err != nil {
		return err
	}
	tests := map[string]bool{}
	for line := range strings.Lines(funcs) {
		tests[strings.TrimSpace(strings.TrimPrefix(line, "func "))] = true
	}
	named, err := git(root, "grep", "--untracked", "-noE", "docs/[A-Za-z0-9_/-]+[.]md", "--", ".", ":!tools/doclinks", ":!*.md")
	if err != nil {
		return err
	}
	return errors.Join(Check(root, strings.Split(strings.TrimSuffix(files, "\x00"), "\x00"), tests),
		checkNamed(root, named))
}

// checkNamed returns an error for each missing document that another file names. The lines are those of git grep.
func checkNamed(root, lines string) error {
	var problems []error
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		name := line[strings.LastIndex(line, ":")+1:]
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			problems = append(problems, fmt.Errorf("%s: the file does not exist", line))
		}
	}
	return errors.Join(problems...)
}

func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// Check returns all errors in files, whose names are relative to root. The keys of tests are the existing tests.
func Check(root string, files []string, tests map[string]bool) error {
	documents := map[string]*document{}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		}
		if err != nil {
			return err
		}
		documents[filepath.Clean(name)] = parse(string(text))
	}
	var problems []error
	for _, name := range files {
		doc, ok := documents[filepath.Clean(name)]
		if !ok {
			continue
		}
		for _, problem := range doc.problems(root, filepath.Clean(name), documents) {
			problems = append(problems, fmt.Errorf("%s:%s", name, problem))
		}
		for _, l := range doc.tests {
			if !tests[l.target] {
				problems = append(problems, fmt.Errorf("%s:%d: %s: the test does not exist", name, l.line, l.target))
			}
		}
	}
	return errors.Join(problems...)
}

// document has the parts of a Markdown file that are checked.
type document struct {
	links    []link
	tests    []link // the tests that the document names
	anchors  map[string]bool
	sections []section
	contents map[string]bool // the fragments in the paragraph of contents; nil without one
}

type link struct {
	line   int
	target string
}

// section is a heading of the second level.
type section struct {
	line   int
	anchor string
}

var (
	inline    = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)?)(?:\s+"[^"]*")?\)`)
	reference = regexp.MustCompile(`^\[[^\]]+\]:\s+(\S+)`)
	html      = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
	testName  = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9_]*)`")
	codeSpan  = regexp.MustCompile("(`+)[^`]+(`+)")
	heading   = regexp.MustCompile(`^(#{1,6})\s+(.*?)\s*#*$`)
	linkText  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// parse parses a document. Code, in a block or in a line, has no links and no headings.
func parse(text string) *document {
	doc := &document{anchors: map[string]bool{}}
	fenced, listing, number := false, false, 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		if match := heading.FindStringSubmatch(line); match != nil {
			anchor := doc.addAnchor(match[2])
			if match[1] == "##" {
				doc.sections = append(doc.sections, section{number, anchor})
			}
		}
		for _, match := range testName.FindAllStringSubmatch(line, -1) {
			doc.tests = append(doc.tests, link{number, match[1]})
		}
		plain := codeSpan.ReplaceAllString(line, "")
		for _, pattern := range []*regexp.Regexp{inline, reference, html} {
			for _, match := range pattern.FindAllStringSubmatch(plain, -1) {
				doc.links = append(doc.links, link{number, match[1]})
			}
		}
		if strings.HasPrefix(plain, "**Contents:**") {
			doc.contents, listing = map[string]bool{}, true
		}
		if listing = listing && plain != ""; listing {
			for _, match := range inline.FindAllStringSubmatch(plain, -1) {
				doc.contents[match[1]] = true
			}
		}
	}
	return doc
}

// addAnchor adds the fragment of a heading, as GitHub forms it: in lower case, without punctuation, with dashes for
// spaces, and with a number when the fragment exists already.
func (d *document) addAnchor(title string) string {
	title = linkText.ReplaceAllString(title, "$1")
	var slug strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case r == ' ':
			slug.WriteRune('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 0x7f && r != '–' && r != '…' &&
			r != '→' && r != '↔':
			slug.WriteRune(r)
		}
	}
	anchor := slug.String()
	for i := 1; d.anchors[anchor]; i++ {
		anchor = fmt.Sprintf("%s-%d", slug.String(), i)
	}
	d.anchors[anchor] = true
	return anchor
}

// problems returns the errors in a document, each with its line.
func (d *document) problems(root, name string, all map[string]*document) []string {
	var found []string
	for _, l := range d.links {
		if reason := broken(root, name, l.target, all); reason != "" {
			found = append(found, fmt.Sprintf("%d: %s: %s", l.line, l.target, reason))
		}
	}
	if d.contents == nil {
		return found
	}
	for _, s := range d.sections {
		if !d.contents["#"+s.anchor] {
			found = append(found, fmt.Sprintf("%d: the contents do not list #%s", s.line, s.anchor))
		}
	}
	return found
}

// broken returns why a link is broken; "" when it is valid or the address of a web page.
func broken(root, from, target string, all map[string]*document) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") || strings.HasPrefix(target, "<") {
		return ""
	}
	path, fragment, _ := strings.Cut(target, "#")
	file := from
	if path != "" {
		file = filepath.Join(filepath.Dir(from), path)
	}
	if file == ".." || strings.HasPrefix(file, "../") {
		return "leads out of the repository"
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return "the file does not exist"
	}
	if doc, ok := all[file]; ok && fragment != "" && !doc.anchors[fragment] {
		return "the file has no such heading"
	}
	return ""
}
