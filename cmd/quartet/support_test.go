package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/harness"
)

// planted are the secrets of a node, by where they are.
var planted = map[string]string{
	"secret of the node":         "correct-horse-battery",
	"environment of a pod":       "tr0ub4dor-and-3",
	"key of secrets":             "c2VjcmV0LWtleS1vZi10aGUtbm9kZQ",
	"manifest":                   "only-in-the-manifest",
	"applied object":             "only-in-the-applied",
	"kubeconfig token":           "tokenofthenode77",
	"kubeconfig password":        "paßword of the node",
	"kubeconfig key":             "LS0tbm9kZWtleS0tLQ==",
	"header":                     "headerofmanifests1",
	"URL password":               "urlpassword1",
	"URL token":                  "urltoken1",
	"bearer token in a log":      "abcdef0123456789",
	"password in a log":          "logged-password",
	"private key in a log":       "MHcCAQEEIBkg",
	"service account token":      "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl",
	"registry credentials":       "cmVnaXN0cnk6cGFzc3dvcmQ=",
	"environment of the process": "only-in-the-environment",
}

// fullConfigMux holds a secret.
type fullConfigMux struct {
	configv1.UnimplementedConfigServiceServer
}

func (fullConfigMux) WatchObjects(
	_ *configv1.WatchObjectsRequest, to grpc.ServerStreamingServer[configv1.WatchObjectsResponse],
) error {
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "login"},
		Data:       map[string][]byte{"password": []byte(planted["secret of the node"])},
	}
	data, err := secret.Marshal()
	return errors.Join(err,
		to.Send(&configv1.WatchObjectsResponse{
			Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SNAPSHOT}, Object: &configv1.Object{Kind: "Secret", Object: data},
		}),
		to.Send(&configv1.WatchObjectsResponse{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SYNCED}}))
}

// fullEngine has a pod with an environment, whose worker repeats it and the secret in an error.
type fullEngine struct {
	enginev1.UnimplementedEngineServiceServer
}

func (fullEngine) ListPods(context.Context, *enginev1.ListPodsRequest) (*enginev1.ListPodsResponse, error) {
	env := []corev1.EnvVar{{Name: "LOGIN", Value: planted["environment of a pod"]}}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-node-1", UID: "uid-1"},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Env: env}}},
		Status:     corev1.PodStatus{Message: "started with " + env[0].Value},
	}
	data, err := pod.Marshal()
	return &enginev1.ListPodsResponse{Pods: []*enginev1.Pod{{Pod: data}}}, err
}

func (fullEngine) ListWorkers(context.Context, *enginev1.ListWorkersRequest) (*enginev1.ListWorkersResponse, error) {
	return &enginev1.ListWorkersResponse{Workers: []*enginev1.Worker{{
		Namespace: "default", Name: "web-node-1", PodUid: "uid-1",
		LastError: "the hook printed " + planted["environment of a pod"] + " and " +
			base64.StdEncoding.EncodeToString([]byte(planted["secret of the node"])),
	}}}, nil
}

// serveAs serves a part of a node until the test ends.
func serveAs(t *testing.T, l layout.Layout, service layout.Service, register func(*grpc.Server)) {
	t.Helper()
	writeFile(t, filepath.Join(filepath.Dir(l.Socket(service)), "README"), "sockets")
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: l.Address(service), Health: rpc.NewHealth(), Logger: slog.New(slog.DiscardHandler),
			Register: register, Ready: func() { close(ready) },
		})
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// writeFile writes a file and its directory.
func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runAs starts a process that looks like a service with arguments, and gives it the lock of the service.
func runAs(t *testing.T, l layout.Layout, service layout.Service, args ...string) {
	t.Helper()
	cmd := exec.Command("/bin/sh")
	cmd.Args = append([]string{"/usr/libexec/" + string(service), "-c", "read forever"}, args...)
	cmd.Dir = l.StateDir()
	cmd.Env = []string{"LOGIN=" + planted["environment of the process"]}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stdin.Close(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it fails to read
	})
	holder, err := json.Marshal(statedir.Holder{Service: string(service), PID: cmd.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(l.StateDir(), string(service)+".lock"), string(holder))
}

// fullNode is a node with every planted secret.
func fullNode(t *testing.T) layout.Layout {
	t.Helper()
	l, err := layout.New(harness.ShortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) { writeFile(t, filepath.Join(l.StateDir(), name), content) }
	write("kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 77\n"+
		"staticPodURL: https://user:"+planted["URL password"]+"@example.com/pods?token="+planted["URL token"]+"\n"+
		"staticPodURLHeader: {X-Key: ["+planted["header"]+"]}\n")
	write("kubeconfig", "apiVersion: v1\nkind: Config\nusers:\n- name: node\n  user:\n"+
		"    token: "+planted["kubeconfig token"]+"\n    password: "+planted["kubeconfig password"]+"\n    client-key-data: "+planted["kubeconfig key"]+"\n")
	write("secrets.key", planted["key of secrets"])
	write("applied/pod.json", planted["applied object"])
	write("manifests/web.yaml", planted["manifest"])
	write("root/config.json", planted["registry credentials"])
	var log strings.Builder
	for _, name := range []string{
		"secret of the node", "environment of a pod", "kubeconfig token", "kubeconfig password", "kubeconfig key", "header",
	} {
		log.WriteString("level=ERROR msg=\"it printed " + planted[name] + "\"\n")
	}
	write("logs/node.log", log.String()+"level=INFO msg=serving pod=default/web\n"+
		"GET /pods Authorization: Bearer "+planted["bearer token in a log"]+"\n"+
		"DB_PASSWORD="+planted["password in a log"]+"\n"+
		"mounted "+planted["service account token"]+"\n")
	write("logs/containerd.log", "-----BEGIN EC PRIVATE KEY-----\n"+planted["private key in a log"]+
		"\n-----END EC PRIVATE KEY-----\n"+`{"auth":"x","token":"`+planted["registry credentials"]+`"}`+"\n")
	serveAs(t, l, layout.ConfigMux, func(s *grpc.Server) { configv1.RegisterConfigServiceServer(s, fullConfigMux{}) })
	serveAs(t, l, layout.SyncLoop, func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, fullEngine{}) })
	runAs(t, l, layout.SyncLoop, "--kubeconfig=kubeconfig", "--v=4")
	return l
}

// supportBundle runs the command, and returns the files of the bundle and what the command prints.
func supportBundle(t *testing.T, l layout.Layout) (files map[string]string, out, warnings string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	cmd := root()
	cmd.SetArgs([]string{"support-bundle", "--state-dir", l.StateDir(), "-o", path})
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(stdout.String(), path+" has ") {
		t.Errorf("it prints %q", stdout.String())
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the bundle has the mode %v, %v", info.Mode(), err)
	}
	return unpack(t, path), stdout.String(), stderr.String()
}

// unpack returns the files of a bundle by name.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "quartet-support/")] = string(data)
	}
}

// TestASupportBundleHasNoSecrets: wherever they are on the node. It has what is of use, and names what does not answer.
func TestASupportBundleHasNoSecrets(t *testing.T) {
	files, out, warnings := supportBundle(t, fullNode(t))
	if warnings != "" || !strings.Contains(out, "Secrets are removed") {
		t.Errorf("it prints %q, and warns %q", out, warnings)
	}
	for name, content := range files {
		for where, secret := range planted {
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
				if strings.Contains(content, form) {
					t.Errorf("%s has the %s:\n%s", name, where, content)
				}
			}
		}
	}
	for name, want := range map[string]string{
		"README.txt":                        "are removed from all texts",
		"version.txt":                       "Kubernetes API",
		"doctor.txt":                        "kernel",
		"status/pods.txt":                   "web-node-1",
		"status/workers.txt":                "the hook printed [removed]",
		"status/sources.txt":                "quartet get sources",
		"status/node.txt":                   "cannot reach nodestatus",
		"configuration/kubelet.yaml":        "maxPods: 77",
		"logs/node.log":                     "msg=serving pod=default/web",
		"logs/containerd.log":               "[removed]",
		"files.txt":                         "manifests/web.yaml",
		"processes/syncloop/process.txt":    "--v=4",
		"processes/syncloop/goroutines.txt": "without this command",
		"processes/pleg/health.txt":         "cannot reach pleg",
		"processes/pleg/process.txt":        "no process has the lock of pleg",
		"processes/configmux/health.txt":    "SERVING",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has not %q:\n%s", name, want, files[name])
		}
	}
}

// refusingConfigMux answers, and does not tell secrets to this user; it breaks off after one otherwise.
type refusingConfigMux struct {
	configv1.UnimplementedConfigServiceServer
	sent *configv1.WatchObjectsResponse
}

func (r refusingConfigMux) WatchObjects(
	_ *configv1.WatchObjectsRequest, to grpc.ServerStreamingServer[configv1.WatchObjectsResponse],
) error {
	if r.sent == nil {
		return status.Error(codes.PermissionDenied, "no secrets for this user")
	}
	return errors.Join(to.Send(r.sent), status.Error(codes.Unavailable, "broken off"))
}

// TestASupportBundleWarnsOfSecretsThatItDoesNotKnow: on the terminal and in its README, with the reason, whichever of
// the two processes does not tell them.
func TestASupportBundleWarnsOfSecretsThatItDoesNotKnow(t *testing.T) {
	const noSecrets, noEnvironment = "configmux does not tell the secrets", "syncloop does not tell the environment"
	configMux := func(c configv1.ConfigServiceServer) func(*grpc.Server) {
		return func(s *grpc.Server) { configv1.RegisterConfigServiceServer(s, c) }
	}
	engine := func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, fullEngine{}) }
	first := &configv1.WatchObjectsResponse{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SNAPSHOT}}
	for name, node := range map[string]struct {
		configMux, engine func(*grpc.Server)
		want, not         []string
	}{
		"nobody answers":         {nil, nil, []string{noSecrets, noEnvironment, "cannot reach"}, nil},
		"configmux is away":      {nil, engine, []string{noSecrets, "cannot reach configmux"}, []string{noEnvironment}},
		"syncloop is away":       {configMux(fullConfigMux{}), nil, []string{noEnvironment}, []string{noSecrets}},
		"a user without secrets": {configMux(refusingConfigMux{}), engine, []string{"no secrets for this user"}, nil},
		"configmux breaks off":   {configMux(refusingConfigMux{sent: first}), engine, []string{"broken off"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := layout.New(harness.ShortDir(t))
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(l.StateDir(), "kubelet.yaml"), "kind: KubeletConfiguration\n")
			if node.configMux != nil {
				serveAs(t, l, layout.ConfigMux, node.configMux)
			}
			if node.engine != nil {
				serveAs(t, l, layout.SyncLoop, node.engine)
			}
			files, out, warnings := supportBundle(t, l)
			if !strings.Contains(out, "Only secrets of typical forms are removed") {
				t.Errorf("it prints %q", out)
			}
			for where, text := range map[string]string{"the terminal": warnings, "README.txt": files["README.txt"]} {
				for _, want := range append(node.want, "Warning: the bundle may have values of secrets") {
					if !strings.Contains(text, want) {
						t.Errorf("%s has not %q:\n%s", where, want, text)
					}
				}
				for _, not := range node.not {
					if strings.Contains(text, not) {
						t.Errorf("%s has %q:\n%s", where, not, text)
					}
				}
			}
		})
	}
}
