package metrics_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/cmd/quartet/internal/metrics"
)

// TestWhatIsCountedOfProbesIsAtAPathOfItsOwn: the metrics of probes are printed and served only on request.
func TestWhatIsCountedOfProbesIsAtAPathOfItsOwn(t *testing.T) {
	s := newSockets(t)
	s.answer("syncloop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := map[string]string{"/metrics": "node_total", "/metrics/probes": "prober_probe_total"}[r.URL.Path]
		if _, err := io.WriteString(w, "# TYPE "+name+" counter\n"+name+" 3\n"); err != nil {
			t.Error(err)
		}
	}))
	const probes, node = `prober_probe_total{service="syncloop"} 3`, `node_total{service="syncloop"} 3`
	out, errOut, err := run(t, "--socket-dir", s.dir, "--probes")
	if err != nil || errOut != "" || !strings.Contains(out, probes) || strings.Contains(out, node) {
		t.Errorf("--probes prints\n%s\n%s%v\nwant an empty text, with %q and without %q", out, errOut, err, probes, node)
	}
	if out, _, err := run(
		t,
		"--socket-dir",
		s.dir,
		"syncloop",
	); err != nil || !strings.Contains(out, node) ||
		strings.Contains(out, probes) {
		t.Errorf("without it is printed\n%s\n%v", out, err)
	}
	served := listen(t, s)
	if status, body := get(
		t,
		served.url+"/metrics/probes",
	); status != http.StatusOK || !strings.Contains(body, probes) ||
		strings.Contains(body, node) {
		t.Errorf("/metrics/probes has %d\n%s\nwant %d, with %q and without %q", status, body, http.StatusOK, probes, node)
	}
	if _, body := get(t, served.url+"/metrics"); !strings.Contains(body, node) || strings.Contains(body, probes) {
		t.Errorf("/metrics has\n%s\nwant text with %q and without %q", body, node, probes)
	}
	for args, want := range map[string]string{"--probes pleg": "pleg has no probes", "--probes --listen 127.0.0.1:0": "leave out --probes"} {
		if _, _, err := run(
			t,
			append(strings.Fields(args), "--socket-dir", s.dir)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// served is a command that serves.
type served struct {
	url string
	// log has the lines of its standard error stream.
	log <-chan string
}

// listen runs the command with --listen until the test ends.
func listen(t *testing.T, s sockets) served {
	t.Helper()
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := metrics.Command()
	cmd.SetArgs([]string{"--socket-dir", s.dir, "--listen", "127.0.0.1:0"})
	cmd.SetErr(writer)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
		for range lines { // read until the end
		}
	})
	first := <-lines
	url := regexp.MustCompile(`http://[0-9.:]+`).FindString(first)
	if url == "" {
		t.Fatalf("the first line does not say where: %q", first)
	}
	return served{url: url, log: lines}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestPrometheusHasOneTargetForTheNode(t *testing.T) {
	s := newSockets(t)
	s.serve("configmux", gauge("fine", 1, nil))
	s.serve("pleg", gauge("fine", 2, nil))
	at := listen(t, s)
	code, body := get(t, at.url+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("get() = %d: %s, want %d", code, body, http.StatusOK)
	}
	contains(t, body, `fine{service="configmux"} 1`, `fine{service="pleg"} 2`, `quartet_up{service="syncloop"} 0`)
	if code, body := get(t, at.url+"/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("healthz: got %d %q, want %d and %q", code, body, http.StatusOK, "ok\n")
	}
}

func TestAServiceThatGoesAndComesIsLoggedOnceEach(t *testing.T) {
	s := newSockets(t)
	s.serve("pleg", gauge("fine", 1, nil))
	s.serve("syncloop", gauge("fine", 1, nil))
	s.serve("nodestatus", gauge("fine", 1, nil))
	at := listen(t, s)
	get(t, at.url+"/metrics")
	get(t, at.url+"/metrics")
	if line := <-at.log; !strings.HasPrefix(line, "configmux: no metrics from") {
		t.Fatalf("line = %q, want text beginning with %q", line, "configmux: no metrics from")
	}
	s.serve("configmux", gauge("fine", 1, nil))
	_, body := get(t, at.url+"/metrics")
	contains(t, body, `quartet_up{service="configmux"} 1`)
	if line := <-at.log; line != "configmux: its metrics are there again" {
		t.Errorf("the second line should be that it is back, got %q", line)
	}
}

func TestAServiceThatHangsHidesNoOther(t *testing.T) {
	s := newSockets(t)
	s.serve("configmux", gauge("fine", 1, nil))
	release := make(chan struct{})
	s.answer("pleg", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer close(release)
	_, body := get(t, listen(t, s).url+"/metrics")
	contains(t, body, `fine{service="configmux"} 1`, `quartet_up{service="pleg"} 0`)
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	s := newSockets(t)
	taken := strings.TrimPrefix(listen(t, s).url, "http://")
	_, _, err := run(t, "--socket-dir", s.dir, "--listen", taken)
	if err == nil || !strings.Contains(err.Error(), taken+" is taken by another process") {
		t.Errorf("run(--socket-dir, --listen) error = %v, want an error with %q", err, taken+" is taken by another process")
	}
}
