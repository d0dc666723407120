package kubeletapi

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// newQueryRig returns a rig with log files of some services and a journalctl that knows kubelet.service and prints its
// arguments, one per line.
func newQueryRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.cfg.Kubelet.EnableSystemLogQuery = ptr.To(true)
	in := func(name string) string { return filepath.Join(r.cfg.LogDir, name) }
	bin := t.TempDir()
	err := errors.Join(
		os.WriteFile(in("plain"), []byte("of plain\n"), 0o600), os.WriteFile(in("suffix.log"), []byte("of suffix\n"), 0o600),
		os.Mkdir(in("folder"), 0o700), os.WriteFile(in("folder/folder.log"), []byte("of folder\n"), 0o600),
		os.Symlink("/etc/passwd", in("link")),
		os.WriteFile(filepath.Join(bin, "journalctl"), []byte(`#!/bin/sh
if [ "$1" = --field ]; then printf 'sshd.service\nkubelet.service\n'; exit; fi
for argument; do echo "[$argument]"; done
`), 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return r
}

func (r *rig) query(parameters ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	values := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		values.Add(parameters[i], parameters[i+1])
	}
	return r.ask("GET", "/logs/?"+values.Encode())
}

func TestLogsOfServices(t *testing.T) {
	r := newQueryRig(t)
	const always = "[--utc]\n[--no-pager]\n[--output=short-precise]\n"
	for _, test := range []struct {
		parameters []string
		want       string
	}{
		{[]string{"query", "kubelet"}, always + "[--unit=kubelet]\n"},
		{[]string{"query", "kubelet", "query", "sshd", "tailLines", "5"}, always + "[--pager-end]\n[--lines=5]\n[--unit=kubelet]\n[--unit=sshd]\n"},
		{[]string{"query", "kubelet", "sinceTime", "2026-01-02T03:04:05+01:00", "untilTime", "2026-01-02T04:04:05Z", "boot", "-1"},
			always + "[--since=2026-01-02 02:04:05]\n[--until=2026-01-02 04:04:05]\n[--unit=kubelet]\n[--boot=-1]\n"},
		{[]string{"query", "kubelet", "pattern", "a b; $(id) > --all"}, always + "[--unit=kubelet]\n[--grep=a b; $(id) > --all]\n"},
		{[]string{"query", "plain"}, "of plain\n"},
		{[]string{"query", "suffix"}, "of suffix\n"},
		{[]string{"query", "folder"}, "of folder\n"},
		{[]string{"query", "folder/folder.log"}, "of folder\n"},
		{[]string{"query", "plain", "query", "kubelet", "query", "none"}, always + "[--unit=kubelet]\nof plain\n\nlog not found for none\n"},
		{[]string{"query", "plain", "tailLines", "1"}, "\noptions present and query resolved to log files for [plain]\ntry without specifying options\n"},
	} {
		answer := r.query(test.parameters...)
		if answer.Code != 200 || answer.Body.String() != test.want {
			t.Errorf("%q: got %d %q, want %q", test.parameters, answer.Code, answer.Body, test.want)
		}
		if got := strings.Join(r.granted, " "); got != "log" {
			t.Errorf("%q is granted by %s, want %q", test.parameters, got, "log")
		}
	}
	if answer := r.query("query", "link"); strings.Contains(answer.Body.String(), "root") {
		t.Errorf("a link out of the folder is followed: %s", answer.Body)
	}
	if answer := r.ask("GET", "/logs/plain"); answer.Code != 200 || answer.Body.String() != "of plain\n" {
		t.Errorf("a file without a query: got %d %s", answer.Code, answer.Body)
	}
}

func TestQueriesOfLogsThatAreRefused(t *testing.T) {
	r := newQueryRig(t)
	for _, test := range []struct {
		code       int
		want       string
		parameters []string
	}{
		{400, "query: may not be empty", []string{"query", " "}},
		{400, `sinceTime: "yesterday" is no time`, []string{"query", "kubelet", "sinceTime", "yesterday"}},
		{400, `tailLines: "x" is no whole number`, []string{"query", "kubelet", "tailLines", "x"}},
		{400, `boot: "x" is no whole number`, []string{"query", "kubelet", "boot", "x"}},
		{406, "query: cannot be empty with options", []string{"tailLines", "5"}},
		{406, "query: cannot specify a file and a service", []string{"query", "kubelet", "query", "folder/folder.log"}},
		{406, "query: cannot specify more than one file", []string{"query", "a/b", "query", "folder/folder.log"}},
		{406, "query: cannot specify a file with options", []string{"query", "folder/folder.log", "tailLines", "5"}},
		{406, "query: ", []string{"query", "../etc/passwd"}},
		{406, "query: ", []string{"query", "/etc/passwd"}},
		{406, "is no name of a service", []string{"query", "kubelet;id"}},
		{406, "is no name of a service", []string{"query", strings.Repeat("a", 257)}},
		{406, "query: 5 services", []string{"query", "a", "query", "b", "query", "c", "query", "d", "query", "e"}},
		{406, "untilTime: must be after sinceTime", []string{"query", "kubelet", "sinceTime", "2026-01-02T03:04:05Z", "untilTime", "2026-01-01T03:04:05Z"}},
		{406, "boot: is 1", []string{"query", "kubelet", "boot", "1"}},
		{406, "tailLines: is 100001", []string{"query", "kubelet", "tailLines", "100001"}},
		{406, "tailLines: is -1", []string{"query", "kubelet", "tailLines", "-1"}},
		{406, "pattern: ", []string{"query", "kubelet", "pattern", "("}},
	} {
		if answer := r.query(test.parameters...); answer.Code != test.code ||
			!strings.Contains(answer.Body.String(), test.want) {
			t.Errorf("%q: got %d %q, want %d %q", test.parameters, answer.Code, answer.Body, test.code, test.want)
		}
	}
	if answer := r.ask("GET", "/logs/plain?query=kubelet"); answer.Code != 406 {
		t.Errorf("a file with a query: got %d %s, want 406", answer.Code, answer.Body)
	}
	r.cfg.Kubelet.EnableSystemLogQuery = ptr.To(false)
	if answer := r.query("query", "kubelet"); answer.Code != 200 || strings.Contains(answer.Body.String(), "unit=kubelet") {
		t.Errorf("queries that are off: got %d %s, want 200 and without %q", answer.Code, answer.Body, "unit=kubelet")
	}
}

func TestALogIsCompressedOnRequest(t *testing.T) {
	r := newQueryRig(t)
	api := Node(r.cfg)
	defer api.Close()
	request := httptest.NewRequestWithContext(t.Context(), "GET", "/logs/?query=plain", nil)
	request.Header.Set("Accept-Encoding", "gzip")
	answer := httptest.NewRecorder()
	api.ServeHTTP(answer, request)
	zipped, err := gzip.NewReader(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zipped)
	if err != nil || string(text) != "of plain\n" || answer.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("ReadAll() = %q, %v, want %q with the encoding gzip", text, err, "of plain\n")
	}
}
