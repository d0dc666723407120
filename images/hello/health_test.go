package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// say sets the result of a check.
func writeCheck(t *testing.T, dir, check, what string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, check), []byte(what+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// calls returns the recorded calls of a check, without their times.
func calls(t *testing.T, dir, check string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, check+".calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(content)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		all = append(all, rest)
	}
	return all
}

// addresses returns the addresses of the servers by title, from a line of serve; that of HTTP has no title.
func addresses(t *testing.T, line string) map[string]string {
	t.Helper()
	_, list, found := strings.Cut(line, "serving on ")
	if !found {
		t.Fatalf("it does not say where it serves: %q", line)
	}
	all := map[string]string{}
	for entry := range strings.SplitSeq(list, ", ") {
		if title, address, found := strings.Cut(entry, " "); found {
			all[title] = address
		} else {
			all[""] = entry
		}
	}
	return all
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{
		Timeout:       5 * time.Second,
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Probe", "here")
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Location") + strings.TrimSpace(string(body))
}

func TestFilesSayWhatChecksAnswerOverHTTPAndHTTPS(t *testing.T) {
	dir := t.TempDir()
	_, out := hello(t, "serve", "-addr", "127.0.0.1:0", "-https", "127.0.0.1:0", "-dir", dir)
	at := addresses(t, line(t, out))
	web, secure := "http://"+at[""], "https://"+at["https"]
	if code, body := get(t, web+"/live"); code != http.StatusOK {
		t.Errorf("without a file: %d %s", code, body)
	}
	writeCheck(t, dir, "live", "fail no database")
	for _, url := range []string{web, secure} {
		if code, body := get(t, url+"/live"); code != http.StatusServiceUnavailable || body != "fail no database" {
			t.Errorf("%s fails with %d %s", url, code, body)
		}
	}
	writeCheck(t, dir, "live", "redirect /other")
	if code, body := get(t, web+"/live"); code != http.StatusFound || !strings.HasPrefix(body, "/other") {
		t.Errorf("redirected: %d %s, want %d and beginning with %q", code, body, http.StatusFound, "/other")
	}
	writeCheck(t, dir, "live", "hang")
	if code, body := get(t, web+"/live"); code != 0 || !strings.Contains(body, "Timeout") {
		t.Errorf("hung: %d %s, want 0 and with %q", code, body, "Timeout")
	}
	if code, body := get(t, web+"/"); code != http.StatusOK {
		t.Errorf("what is no check: %d %s", code, body)
	}
	all := calls(t, dir, "live")
	if want := fmt.Sprintf("https /live host=%q", at["https"]); len(all) != 5 || !strings.HasPrefix(all[2], want) {
		t.Errorf("the calls are %q, want 5, the third %s", all, want)
	}
	if want := `x-probe="here"`; !strings.HasSuffix(all[0], want) {
		t.Errorf("call %q has no %s", all[0], want)
	}
}

func TestFilesSayWhatChecksAnswerOverGRPC(t *testing.T) {
	dir := t.TempDir()
	_, out := hello(t, "serve", "-addr", "127.0.0.1:0", "-grpc", "127.0.0.1:0", "-dir", dir)
	conn, err := grpc.NewClient(addresses(t, line(t, out))["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	client := healthpb.NewHealthClient(conn)
	long := strings.Repeat("x", 200) // its length has two bytes
	writeCheck(t, dir, "store", "fail")
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "front": healthpb.HealthCheckResponse_SERVING,
		long: healthpb.HealthCheckResponse_SERVING, "store": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != want {
			t.Errorf("service %q: %v, error %v, want %v", service, resp, err, want)
		}
	}
	if all := calls(t, dir, "store"); len(all) != 1 || !strings.HasPrefix(all[0], `grpc service="store"`) {
		t.Errorf("the calls are %q, want exactly one and all[0] beginning with %q", all, `grpc service="store"`)
	}
}

func TestTheTCPListenerIsOpenWhileItsCheckPasses(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	_, out := hello(t, "serve", "-addr", "127.0.0.1:0", "-tcp", addr, "-dir", dir)
	line(t, out)
	open := func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Minute)
		return err == nil && conn.Close() == nil
	}
	for _, step := range []struct {
		content string
		want    bool
	}{{"ok", true}, {"fail", false}, {"ok", true}} {
		writeCheck(t, dir, "tcp", step.content)
		for deadline := time.Now().Add(60 * time.Second); open() != step.want; {
			if time.Now().After(deadline) {
				t.Fatalf("the check says %s, and the listener is not open=%v after a minute", step.content, step.want)
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	if len(calls(t, dir, "tcp")) == 0 {
		t.Error("no call is counted")
	}
}

func TestChecksFailUntilASlowStartIsOver(t *testing.T) {
	_, out := hello(t, "serve", "-addr", "127.0.0.1:0", "-after", "3s")
	url := "http://" + addresses(t, line(t, out))[""] + "/start"
	if code, body := get(t, url); code != http.StatusServiceUnavailable || !strings.HasPrefix(body, "starting") {
		t.Errorf("at first: %d %s, want %d and beginning with %q", code, body, http.StatusServiceUnavailable, "starting")
	}
	for deadline := time.Now().Add(60 * time.Second); ; {
		if code, _ := get(t, url); code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it never starts")
		}
	}
}

func TestACheckAnswersByItsExitCode(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]int{"": 0, "ok": 0, "fail no disk": 1, "nonsense": 1} {
		writeCheck(t, dir, "disk", content)
		cmd, out := hello(t, "check", "-dir", dir, "disk")
		text, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit code is checked
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%q: exit code %d, want %d", content, got, want)
		}
		if content == "fail no disk" && string(text) != "disk: fail no disk\n" {
			t.Errorf("it says %q", text)
		}
	}
	writeCheck(t, dir, "disk", "hang")
	cmd, _ := hello(t, "check", "-dir", dir, "disk")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for len(calls(t, dir, "disk")) < 5 {
		select {
		case err := <-ended:
			t.Fatalf("a check that is to hang ends with %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error("it does not hang: ", err)
	}
	if err := <-ended; err == nil {
		t.Error("it passed")
	}
}
