package nodecluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestKubectl runs the usual kubectl commands on a running pod: every request goes through the API server to the node,
// which asks the API server for the identity and the rights of the client.
func TestKubectl(t *testing.T) {
	const ns = "kubectl"
	admin := space(t, ns)
	runPod(t, admin, ns, "web", "serve", "-every", "1s")
	whole.MetricsServer(t) // "top" uses its metrics at the end

	t.Run("logs", func(t *testing.T) {
		if out := kubectl(t, "logs", "-n", ns, "web"); !strings.Contains(out, "hello") {
			t.Errorf("the log is %q, want text with %q", out, "hello")
		}
		followed := background(t, "logs", "-n", ns, "web", "-f", "--tail=1")
		awaitThat(t, "the log that is followed has three lines", func() bool { return strings.Count(followed.String(), "\n") >= 3 })
	})
	t.Run("exec", func(t *testing.T) {
		if out := kubectl(t, "exec", "-n", ns, "web", "--", "/hello", "crash", "-after", "0s", "-code", "0"); out == "" {
			t.Error("the program in the container has printed nothing")
		}
		out := kubectlOrError(t.Context(), "exec", "-n", ns, "web", "--", "/hello", "crash", "-after", "0s", "-code", "7")
		if !strings.Contains(out, "exit code 7") {
			t.Errorf("a program that ends with 7: %q, want text with %q", out, "exit code 7")
		}
	})
	t.Run("attach", func(t *testing.T) {
		attached := background(t, "attach", "-n", ns, "web")
		awaitThat(t, "who is attached sees what is printed", func() bool { return strings.Contains(attached.String(), "hello") })
	})
	t.Run("port-forward", func(t *testing.T) {
		forwarded := background(t, "port-forward", "-n", ns, "pod/web", ":8080")
		address := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> 8080`)
		awaitThat(t, "a port is forwarded", func() bool { return address.MatchString(forwarded.String()) })
		for range 2 { // one connection after another
			if body := fetch(t, "http://"+address.FindStringSubmatch(forwarded.String())[1]+"/"); !strings.Contains(body, "hello") {
				t.Errorf("the page is %q, want text with %q", body, "hello")
			}
		}
	})
	t.Run("cp", func(t *testing.T) {
		dir := t.TempDir()
		sent, got := filepath.Join(dir, "sent"), filepath.Join(dir, "got")
		if err := os.WriteFile(sent, bytes.Repeat([]byte("what is copied\n"), 100_000), 0o600); err != nil {
			t.Fatal(err)
		}
		kubectl(t, "cp", sent, ns+"/web:/copied")
		kubectl(t, "cp", ns+"/web:/copied", got)
		want, err := os.ReadFile(sent)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := os.ReadFile(got); err != nil || !bytes.Equal(back, want) {
			t.Errorf("%d bytes came back of %d, %v, want back %v", len(back), len(want), err, want)
		}
	})
	t.Run("debug", func(t *testing.T) {
		out := kubectl(t, "debug", "-n", ns, "web", "--image", "quartet.local/hello:1", "--image-pull-policy=IfNotPresent", "-c", "looks",
			"--", "/hello", "sleep")
		awaitThat(t, "the ephemeral container runs: "+out, func() bool {
			status := get(t, admin, ns, "web").Status.EphemeralContainerStatuses
			return len(status) == 1 && status[0].Name == "looks" && status[0].State.Running != nil
		})
	})
	t.Run("top", top)
	t.Run("dashboards", dashboards)
}

// top checks that kubectl shows plausible figures, which metrics-server reads from the node with a token. The node has
// the API server review the token.
func top(t *testing.T) {
	const ns = "kubectl"
	amount := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	var found []string
	awaitThat(t, "kubectl top shows the node", func() bool {
		out := kubectlOrError(t.Context(), "top", "node", nodeName, "--no-headers")
		found = regexp.MustCompile(`^` + nodeName + `\s+(\d+)m\s+(\d+)%\s+(\d+)Mi\s+(\d+)%\s*$`).FindStringSubmatch(out)
		return found != nil
	})
	if used, share := amount(found[3]), amount(found[4]); used < 10 || share < 1 || share > 100 {
		t.Errorf("the node uses %d MiB of its memory, %d %%", used, share)
	}
	awaitThat(t, "kubectl top shows the pod", func() bool {
		out := kubectlOrError(t.Context(), "top", "pod", "-n", ns, "web", "--containers", "--no-headers")
		found = regexp.MustCompile(`(?m)^web\s+main\s+(\d+)m\s+(\d+)Mi\s*$`).FindStringSubmatch(out)
		return found != nil
	})
	if cpu, memory := amount(found[1]), amount(found[2]); cpu > 1000 || memory < 1 || memory > 200 {
		t.Errorf("the container that serves a page uses %d m of processors and %d MiB", cpu, memory)
	}
	if out := kubectl(t, "top", "pod", "-n", ns, "--sum", "--no-headers"); !strings.Contains(out, "web") {
		t.Errorf("the pods of the namespace: %s, want text with %q", out, "web")
	}
}

// dashboards checks the pod's metrics that dashboards use, with a kubelet's names and labels.
func dashboards(t *testing.T) {
	out := kubectl(t, "get", "--raw", "/api/v1/nodes/"+nodeName+"/proxy/metrics/cadvisor")
	const pod = `namespace="kubectl",pod="web"} [0-9.e+]*[1-9]`
	container := `,image="quartet.local/hello:1",name="[0-9a-f]{64}",` + pod
	for _, want := range []string{
		`container_cpu_usage_seconds_total\{container="main",cpu="total",id="/[^"]*kubepods[^"]+"` + container,
		`container_memory_working_set_bytes\{container="main",id="/[^"]*kubepods[^"]+"` + container,
		`container_fs_usage_bytes\{container="main",device="",id="/[^"]*kubepods[^"]+"` + container,
		`container_network_receive_bytes_total\{container="",id="/[^"]*kubepods[^"]+",image="",interface="eth0",name="",` + pod,
		`machine_cpu_cores\{boot_id="[^"]+",machine_id="[^"]*",system_uuid="[^"]*"\} [1-9]`,
	} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(out) {
			t.Errorf("there is no %s in\n%s", want, out)
		}
	}
}

// output is the output of a program so far.
type output struct {
	file *os.File
}

func (o output) String() string {
	content, err := os.ReadFile(o.file.Name())
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// background starts kubectl and ends it when the test ends.
func background(t *testing.T, args ...string) output {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := kubectlCommand(ctx, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("kubectl %s: %s", strings.Join(args, " "), output{file})
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	return output{file}
}

// fetch requests a page over a connection of its own.
func fetch(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	var body bytes.Buffer
	if _, err := io.Copy(&body, response.Body); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode) + " " + body.String()
}
