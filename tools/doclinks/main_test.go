package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckFindsWhatLeadsNowhere(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("README.md", strings.Join([]string{
		"# Title",
		"[good](docs/a.md) [good](docs/a.md#two-words) ![picture](docs/picture.svg) [web](https://example.com/x#y) [self](#title)",
		"[no file](docs/missing.md) and [no heading](docs/a.md#three)",
		"`[code](nowhere.md)`",
		"",
		"    [block](nowhere.md)",
		"```",
		"[fence](nowhere.md)",
		"```",
		"[out](../other.md)",
	}, "\n"))
	write("docs/a.md", strings.Join([]string{
		"# A",
		"",
		"**Contents:** [A](#a) ·",
		"[Two words](#two-words)",
		"",
		"## Two `words`",
		"## Two words",
		"[back](../README.md#title) [second](#two-words-1) `TestThere` `TestGone`",
	}, "\n"))
	write("docs/picture.svg", "<svg/>")

	err := Check(root, []string{"README.md", "docs/a.md", "docs/removed.md"}, map[string]bool{"TestThere": true})
	if err == nil {
		t.Fatal("nothing is found")
	}
	got := strings.Split(err.Error(), "\n")
	want := []string{
		"README.md:3: docs/missing.md: the file does not exist",
		"README.md:3: docs/a.md#three: the file has no such heading",
		"README.md:10: ../other.md: leads out of the repository",
		"docs/a.md:7: the contents do not list #two-words-1",
		"docs/a.md:8: TestGone: the test does not exist",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCheckIsContentWithWhatIsRight(t *testing.T) {
	root := t.TempDir()
	text := "# The way: to an API server?\n\n[up](#the-way-to-an-api-server)\n"
	if err := os.WriteFile(filepath.Join(root, "a.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Check(root, []string{"a.md"}, nil); err != nil {
		t.Error(err)
	}
}

func TestDocumentsThatCodeNamesAreChecked(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "there.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := checkNamed(root, "main.go:3:there.md\nmain.go:9:docs/gone.md\n")
	if err == nil || err.Error() != "main.go:9:docs/gone.md: the file does not exist" {
		t.Errorf("checkNamed() error = %v, want %q", err, "main.go:9:docs/gone.md: the file does not exist")
	}
}
