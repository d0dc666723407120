package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

// TestKubectlThroughAnAPIServer: all requests of kubectl that an API server forwards to a node work with this node,
// over SPDY and over WebSocket.
func TestKubectlThroughAnAPIServer(t *testing.T) {
	r := newRemote(t, "")
	r.run("streams", false, "/streams", "lines")
	r.run("terminal", true, "/streams", "terminal")
	r.run("web", false, "/hello", "serve", "-message", "hello from afar")
	for _, protocol := range []string{"websocket", "spdy"} {
		t.Run(protocol, func(t *testing.T) {
			r := r.over(t, protocol)
			t.Run("exec", r.exec)
			t.Run("exec with a terminal", r.execTerminal)
			t.Run("attach with a terminal", r.attachTerminal)
			t.Run("port-forward", r.portForward)
		})
	}
	t.Run("WebSocket goes to the node as it is", r.webSocketCounted)
	t.Run("logs", r.logs)
	t.Run("attach", r.attach)
	t.Run("checkpoint", r.checkpoint)
	t.Run("who asks", r.whoAsks)
}

// remote is kubectl for a cluster with this node.
type remote struct {
	t                *testing.T
	cluster          *cluster.Cluster
	node, kubeconfig string
	port             string
	env              []string
}

// newRemote has the node join a cluster. more is appended to its configuration.
func newRemote(t *testing.T, more string, options ...cluster.Option) *remote {
	t.Helper()
	if _, err := os.Stat(kubectlPath()); err != nil {
		require.NoError(t, fmt.Errorf("%w: run 'make test-tools' first", err))
	}
	r := &remote{t: t, node: nodeName(t), cluster: cluster.Start(t, options...), port: freePort(t)}
	r.kubeconfig = r.cluster.Kubeconfig(t, "admin", cluster.Masters)
	// kubeadm grants this role to the API server for the API of the nodes.
	_, err := r.cluster.Client(t).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e:kubelet-api"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind,
			Name: "kube-apiserver-kubelet-client"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "address: 0.0.0.0\nport: " + r.port + "\nauthentication: {x509: {clientCAFile: " + r.authority() + "}}\n" + livenode.AnyMachine + more
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node.RestartServices(t, "--config", config, "--kubeconfig", r.cluster.Kubeconfig(t, cluster.NodeUser(r.node), cluster.Nodes))
	awaitThat(t, "the Node says where its API is", func() bool {
		found, err := r.cluster.Client(t).CoreV1().Nodes().Get(t.Context(), r.node, metav1.GetOptions{})
		return err == nil && strconv.Itoa(int(found.Status.DaemonEndpoints.KubeletEndpoint.Port)) == r.port &&
			len(found.Status.Addresses) > 0
	})
	return r
}

// authority returns a file with the certificate of the authority that signs the cluster's client certificates.
func (r *remote) authority() string {
	r.t.Helper()
	config, err := clientcmd.LoadFromFile(r.kubeconfig)
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(r.t.TempDir(), "ca.crt")
	for _, c := range config.Clusters {
		if err := os.WriteFile(file, c.CertificateAuthorityData, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return file
}

// freePort returns a port on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

func kubectlPath() string { return filepath.Join(livenode.Bin(), "tools", "kubectl") }

// over returns a copy that uses one of kubectl's two protocols.
func (r *remote) over(t *testing.T, protocol string) *remote {
	t.Helper()
	other := *r
	other.t = t
	websocket := strconv.FormatBool(protocol == "websocket")
	other.env = []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + websocket, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + websocket}
	return &other
}

func (r *remote) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, kubectlPath(), append([]string{"--kubeconfig", r.kubeconfig}, args...)...)
	cmd.Env = append(append(os.Environ(), "NO_PROXY=*"), r.env...)
	return cmd
}

// kubectl runs kubectl and returns both outputs and the exit code.
func (r *remote) kubectl(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := r.command(ctx, args...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &problems
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("kubectl %v: error = %v, want nil or an exit code", args, err)
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// run has the node run a pod with the example program and the program whose streams are tested, with or without a
// terminal.
func (r *remote) run(name string, tty bool, command ...string) {
	t := r.t
	t.Helper()
	tool := filepath.Join(t.TempDir(), "streams")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", tool, "./testdata/streams")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pods := r.cluster.Client(t).CoreV1().Pods("default")
	_, err := pods.Create(t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: r.node, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{
				Name: "main", Image: image, Command: command, Stdin: true, TTY: tty, ImagePullPolicy: v1.PullIfNotPresent,
				VolumeMounts: []v1.VolumeMount{{Name: "tool", MountPath: "/streams", ReadOnly: true}},
			}},
			Volumes: []v1.Volume{{Name: "tool", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: tool, Type: ptr.To(v1.HostPathFile)}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := pods.Delete(context.WithoutCancel(t.Context()), name,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	awaitThat(t, name+" is Ready", func() bool {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && ready(pod)
	})
}

// exec tests streams, exit codes, and containers that do not run.
func (r *remote) exec(t *testing.T) {
	stdout, stderr, code := r.kubectl(t, "", "exec", "streams", "--", "/streams", "stderr")
	if stdout != "to stdout\n" || !strings.HasPrefix(stderr, "to stderr\n") || code != 3 {
		t.Errorf("got %q, %q and exit code %d, want both outputs apart and 3", stdout, stderr, code)
	}
	big := strings.Repeat("x", 60_000) + "\n"
	stdout, stderr, code = r.kubectl(t, "a b\n"+big+"end\n", "exec", "-i", "streams", "--", "/streams", "lines")
	if stdout != "ready\nread a b\nread "+big || code != 0 {
		t.Errorf("got %d bytes, %q and exit code %d, want stdout %v and 0",
			len(stdout), stderr, code, "ready\nread a b\nread "+big)
	}
	for what, args := range map[string][]string{
		"executable file not found|no such file": {"exec", "streams", "--", "/no-such-program"},
		"(?i)not found|not valid":                {"exec", "streams", "-c", "other", "--", "/streams"},
	} {
		if _, stderr, code := r.kubectl(t, "", args...); code == 0 || !regexp.MustCompile(what).MatchString(stderr) {
			t.Errorf("%v: got %q and exit code %d", args, stderr, code)
		}
	}
}

// portForward tests that bytes are forwarded in both directions.
func (r *remote) portForward(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := r.command(ctx, "port-forward", "pod/web", ":8080", "--address", "127.0.0.1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindStringSubmatch(line)
	if port == nil {
		t.Fatalf("kubectl says %q", line)
	}
	for range 3 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port[1]+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil || !strings.Contains(string(body), "hello from afar") {
			t.Errorf("ReadAll() = %q, %v, want text with %q", body, err, "hello from afar")
		}
	}
}

// logs tests each option, and a container without a log.
func (r *remote) logs(t *testing.T) {
	whole, stderr, code := r.kubectl(t, "", "logs", "web")
	if code != 0 || !strings.Contains(whole, "\n") {
		t.Fatalf("got %q, %q, exit code %d, want 0 and with %q", whole, stderr, code, "\n")
	}
	first, _, _ := strings.Cut(whole, "\n")
	for _, c := range []struct {
		args, want string
	}{
		{"--limit-bytes=3", "^" + regexp.QuoteMeta(first[:3]) + "$"},
		{"--tail=1", `^[^\n]+\n$`},
		{"--timestamps --tail=1", `^20\d\d-\d\d-\d\dT\S+ `},
		{"--since=1h", regexp.QuoteMeta(first)},
		{"--since-time=2100-01-01T00:00:00Z", "^$"},
	} {
		if got, stderr, code := r.kubectl(t, "", append([]string{"logs", "web"}, strings.Fields(c.args)...)...); code != 0 || !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("%s: got %q, %q, exit code %d", c.args, got, stderr, code)
		}
	}
	if _, stderr, code := r.kubectl(t, "", "logs", "web", "--previous"); code == 0 || !strings.Contains(stderr, "previous terminated container") {
		t.Errorf("--previous: got %q, exit code %d", stderr, code)
	}
}

// attach tests a container that reads its input, while kubectl follows its output and ends with it.
func (r *remote) attach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	follow := r.command(ctx, "logs", "-f", "streams")
	var followed bytes.Buffer
	follow.Stdout = &followed
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	attach := r.command(ctx, "attach", "-i", "-q", "streams")
	input, err := attach.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := attach.StdoutPipe()
	if err == nil {
		err = attach.Start()
	}
	if err == nil {
		_, err = io.WriteString(input, "by attach\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "read by attach\n" {
		t.Errorf("ReadString() = %q, %v, want %q", line, err, "read by attach\n")
	}
	if _, err := io.WriteString(input, "end\n"); err != nil {
		t.Error(err)
	}
	if err := attach.Wait(); err != nil {
		t.Errorf("attach ends with %v", err)
	}
	if err := follow.Wait(); err != nil || followed.String() != "ready\nread by attach\n" {
		t.Errorf("logs -f has %q, %v, want %q", followed.String(), err, "ready\nread by attach\n")
	}
	awaitThat(t, "the former container has a log", func() bool {
		stdout, _, code := r.kubectl(t, "", "logs", "streams", "--previous", "-f") // this log is complete
		return code == 0 && stdout == "ready\nread by attach\n"
	})
}

// webSocketCounted checks that the API server forwards WebSocket streams, which it would translate for a node that does
// not support them.
func (r *remote) webSocketCounted(t *testing.T) {
	metrics, stderr, code := r.kubectl(t, "", "get", "--raw", fmt.Sprintf("/api/v1/nodes/%s:%s/proxy/metrics", r.node, r.port))
	for _, what := range []string{"exec", "attach", "portforward"} {
		if !strings.Contains(metrics, `kubelet_websocket_streaming_requests_total{subresource="`+what+`"} `) {
			t.Errorf("the node has served no %s over WebSocket: %s, exit code %d", what, stderr, code)
		}
	}
}

// checkpoint tests that a request gets its file, or an error that names what the runtime lacks.
func (r *remote) checkpoint(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.CAData, config.Insecure = nil, true // the node has signed its certificate itself
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://127.0.0.1:"+r.port+"/checkpoint/default/web/main", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	answer, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s", answer.Status, text)
	if answer.StatusCode != http.StatusOK {
		if answer.StatusCode != http.StatusInternalServerError ||
			!strings.Contains(string(text), "checkpointing of default/web/main failed") ||
			!strings.Contains(strings.ToLower(string(text)), "criu") {
			t.Errorf("answer.Status = %s, %s, want answer.StatusCode %v, with %q and ToLower with %q",
				answer.Status, text, http.StatusInternalServerError, "checkpointing of default/web/main failed", "criu")
		}
		return
	}
	var saved struct{ Items []string }
	if err := json.Unmarshal(text, &saved); err != nil || len(saved.Items) != 1 {
		t.Fatalf("ReadAll() = %s, %v, want len(saved.Items) 1", text, err)
	}
	if info, err := os.Stat(saved.Items[0]); err != nil || info.Size() == 0 {
		t.Errorf("the checkpoint %s: %v", saved.Items[0], err)
	}
}

// whoAsks tests that the node asks the API server for the identity and the rights of a client.
func (r *remote) whoAsks(t *testing.T) {
	for user, want := range map[string]string{"admin": "", "nobody": "Forbidden"} {
		path := fmt.Sprintf("/api/v1/nodes/%s:%s/proxy/pods", r.node, r.port)
		args := []string{"get", "--raw", path}
		if user != "admin" {
			args = append(args, "--as", user)
		}
		stdout, stderr, code := r.kubectl(t, "", args...)
		if want == "" && (code != 0 || !strings.Contains(stdout, `"kind":"PodList"`)) {
			t.Errorf("%s: got %q, %q", user, stdout, stderr)
		}
		if want != "" && (code == 0 || !strings.Contains(stderr, want)) {
			t.Errorf("%s: got %q, %q", user, stdout, stderr)
		}
	}
	out, err := node.Command(t.Context(), "get", "node", "-o", "json")
	if err != nil || !strings.Contains(out, r.port) {
		t.Errorf("Command(get, node, -o, json) error = %v, want out with %q", err, r.port)
	}
}
