package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

// TestTheLastReleaseIsThatOfTheChangelog: the file from which tests and checks take the last release has the name and
// the commit that CHANGELOG.md gives to it.
func TestTheLastReleaseIsThatOfTheChangelog(t *testing.T) {
	release, err := os.ReadFile("../../test/versions/release")
	require.NoError(t, err)
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	require.NoError(t, err)
	fields := strings.Fields(string(release))
	if len(fields) != 2 || len(fields[1]) != 40 {
		t.Fatalf("test/versions/release has %q, want a name and a commit", release)
	}
	name, commit := strings.TrimPrefix(fields[0], "v"), fields[1]
	last := regexp.MustCompile(`(?m)^## \[(\d[^]]*)\]`).FindSubmatch(changelog)
	if last == nil || string(last[1]) != name {
		t.Errorf("the last release of CHANGELOG.md is %s, want %s", last, name)
	}
	reference := `(?m)^\[` + regexp.QuoteMeta(name) + `\]: \S*/tree/([0-9a-f]{7,40})$`
	link := regexp.MustCompile(reference).FindSubmatch(changelog)
	if link == nil || !strings.HasPrefix(commit, string(link[1])) {
		t.Errorf("CHANGELOG.md has the commit %s for %s, want %s", link, name, commit)
	}
}
