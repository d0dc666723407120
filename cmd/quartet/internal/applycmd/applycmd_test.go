package applycmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
)

// configmux is the path of the service, built for these tests.
var configmux string

func TestMain(m *testing.M) {
	if os.Getenv(asksAt) != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "q")
	if err == nil {
		configmux = filepath.Join(dir, "configmux")
		build := exec.Command("go", "build", "-o", configmux, "github.com/quartet-node/quartet/cmd/configmux")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "building configmux: %v\n", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil && code == 0 {
			code = 1
		}
		os.Exit(code)
	}))
}

// patience is the time limit of a wait.
const patience = 60 * time.Second

// node is a real configmux, and a directory for manifests.
type node struct {
	t             *testing.T
	dir, stateDir string
	flags, env    []string
	layout        layout.Layout
	// stop ends configmux.
	stop func()
}

func newNode(t *testing.T, flags ...string) *node {
	t.Helper()
	// Not t.TempDir: with the name of the test the sockets' paths would be too long.
	dir, err := os.MkdirTemp("", "q")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	n := &node{t: t, dir: dir, stateDir: filepath.Join(dir, "state"), flags: flags}
	n.layout, err = layout.New(n.stateDir)
	must(t, err)
	must(t, os.MkdirAll(n.layout.SocketDir(), 0o700))
	n.write(
		"kubelet.yaml",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: "+filepath.Join(
			dir,
			"static",
		)+"\n",
	)
	n.start()
	return n
}

// start starts configmux with the log file "log", and waits until it serves.
func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(n.t, err)
	cmd := exec.Command(configmux, append([]string{
		"--config=" + filepath.Join(
			n.dir,
			"kubelet.yaml",
		),
		"--state-dir=" + n.stateDir,
		"--listen=" + n.layout.Address(layout.ConfigMux),
		"--metrics-listen=none",
		"--hostname-override=node",
	}, n.flags...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), n.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(n.t, cmd.Start())
	n.stop = sync.OnceFunc(func() {
		must(n.t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			output, _ := os.ReadFile(log.Name())
			n.t.Errorf("configmux: %v\n%s", err, output)
		}
		must(n.t, log.Close())
	})
	n.t.Cleanup(n.stop)
	conn, err := rpc.Dial(n.layout.Address(layout.ConfigMux))
	must(n.t, err)
	defer func() { must(n.t, conn.Close()) }()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	for err := target.Serving(ctx, conn); err != nil; err = target.Serving(ctx, conn) {
		if ctx.Err() != nil {
			n.t.Fatalf("configmux does not serve: %v", err)
		}
	}
}

func (n *node) write(name, content string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	must(n.t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(n.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// run runs a command to its end. In its output DIR replaces the directory.
func (n *node) run(stdin string, args ...string) (out, errOut string, err error) {
	n.t.Helper()
	root := &cobra.Command{Use: "quartet", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands()...)
	root.AddCommand(show.Commands()...)
	root.SetArgs(append(args, "--state-dir", n.stateDir))
	var o, e bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&o)
	root.SetErr(&e)
	err = root.ExecuteContext(n.t.Context())
	return o.String(), strings.ReplaceAll(e.String(), n.dir, "DIR"), err
}

// expect runs a command and compares its output and its error; "" is none.
func (n *node) expect(stdin string, args []string, out, errOut, failure string) {
	n.t.Helper()
	gotOut, gotErrOut, err := n.run(stdin, args...)
	gotFailure := ""
	if err != nil {
		gotFailure = strings.ReplaceAll(err.Error(), n.dir, "DIR")
	}
	for what, got := range map[string][2]string{"output": {gotOut, out}, "error output": {gotErrOut, errOut}, "error": {gotFailure, failure}} {
		if got[0] != got[1] {
			n.t.Errorf("quartet %s: the %s is\n%s\nwant\n%s", strings.Join(args, " "), what, got[0], got[1])
		}
	}
}

func manifest(name, image string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %s}]}\n",
		name,
		image,
	)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestApplyAndDelete(t *testing.T) {
	n := newNode(t)
	file := n.write("a.yaml", "# two\n---\n"+manifest("a", "i:1")+"---\n"+manifest("b", "i:1"))
	apply := []string{"apply", "-f", file}
	n.expect("", append(apply, "--dry-run"), "pod/a-node created (dry run)\npod/b-node created (dry run)\n", "", "")
	n.expect("", apply, "pod/a-node created\npod/b-node created\n", "", "")
	n.expect(manifest("b", "i:2"), []string{"apply", "-f", "-"}, "pod/b-node configured\n", "", "")
	n.expect("", apply, "pod/a-node unchanged\npod/b-node configured\n", "", "")
	n.expect("", []string{"delete", "-f", file}, "pod/a deleted\npod/b deleted\n", "", "")
	other := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c","namespace":"other"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	n.expect(other, []string{"apply", "-f", "-"}, "pod/other/c-node created\n", "", "")
	n.expect("", []string{"delete", "pod", "-n", "other", "c-node"}, "pod/other/c-node deleted\n", "", "")
	n.expect(
		"",
		[]string{"delete", "pod", "other/c"},
		"",
		"pod/other/c: the source \"local\" has no pod other/c: one of another source goes away with its file; quartet get pods lists all\n",
		"1 of 1 could not be deleted: see above",
	)
}

func TestProblemsAreReportedAndTheOthersAreApplied(t *testing.T) {
	n := newNode(t)
	n.write(
		"m/1.yaml",
		manifest(
			"good",
			"i:1",
		)+"---\n"+manifest(
			"bad",
			"''",
		)+"---\n"+strings.Replace(
			manifest("misspelled", "i"),
			"image:",
			"imago:",
			1,
		),
	)
	n.write(
		"m/2.json",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x/y"},"spec":{"restartPolicy":"Nevr","containers":[{"name":"c","image":"i"}]}}`,
	)
	n.write("m/3.yml", "")
	n.write("m/4.yaml", "apiVersion: v1\nkind: Service\n")
	n.write("m/5.yaml", manifest("last", "i:1"))
	n.write("m/notes.txt", "no manifest")
	out, errOut, err := n.run("", "apply", "-f", filepath.Join(n.dir, "m"))
	if out != "pod/good-node created\npod/last-node created\n" {
		t.Errorf("the output is\n%s\nwant the two good pods created", out)
	}
	if err == nil || err.Error() != "5 of 7 could not be applied: see above" {
		t.Errorf("the command ended with %v", err)
	}
	for _, want := range []string{
		"DIR/m/1.yaml: document 2: pod/bad: it is not valid:\n    spec.containers[0].image  Required value\n",
		"DIR/m/1.yaml: document 3: pod/misspelled: check the spelling and the indentation of:\n    unknown field \"spec.containers[0].imago\"\n",
		"DIR/m/2.json: pod/x/y: it is not valid:\n    metadata.name       Invalid value: \"x/y-node\"",
		"\n    spec.restartPolicy  Unsupported value: \"Nevr\"",
		"DIR/m/3.yml: it is empty: write a Pod, a ConfigMap, a Secret or a PersistentVolumeClaim into it\n",
		"DIR/m/4.yaml: it must have apiVersion v1 and kind Pod, ConfigMap, Secret, PersistentVolumeClaim or a list of them (List, PodList, ConfigMapList, SecretList, PersistentVolumeClaimList), or apiVersion storage.k8s.io/v1 and kind StorageClass, CSIDriver or a list of them (StorageClassList, CSIDriverList), and has \"v1\" and \"Service\"\n",
	} {
		if !strings.Contains(errOut, want) {
			t.Errorf("the errors lack\n%s\nthey are\n%s", want, errOut)
		}
	}
}

func TestWrongArgumentsPrintAdvice(t *testing.T) {
	n := newNode(t)
	n.write("a", manifest("a", "i:1"))
	for _, tc := range []struct{ args, want string }{
		{"apply", "say what to apply: -f FILE, -f DIR or, for the standard input, -f -"},
		{"apply -f " + n.dir + "/none", "reading the manifests: stat DIR/none: no such file or directory"},
		{"apply -f " + n.stateDir, "DIR/state has no manifests: they are files that end in .yaml, .yml or .json"},
		{"apply -f " + n.dir + "/a -f " + n.dir + "/none", "reading the manifests: stat DIR/none: no such file or directory"},
		{"apply -f a.yaml b.yaml", `"b.yaml" is one too many: give each file a -f of its own, or name their directory`},
		{"apply -f - --dry-run=client", `invalid argument "client" for "--dry-run" flag: use --dry-run without a value: only configmux validates`},
		{"delete", "say what to delete: pod NAME, configmap NAME, secret NAME, pvc NAME, pv NAME, storageclass NAME, csidriver NAME, or -f FILE"},
		{"delete node x", `there is no "node" to delete: say delete KIND NAME, with the kind pod, configmap, secret, pvc, pv, storageclass or csidriver`},
		{"delete pod", "name what to delete: delete pod NAME"},
		{"delete pod/a b", `there is no "b" to delete: say delete KIND NAME, with the kind pod, configmap, secret, pvc, pv, storageclass or csidriver`},
		{"delete node/a", `there is no "node/a" to delete: say delete KIND NAME, with the kind pod, configmap, secret, pvc, pv, storageclass or csidriver`},
		{"delete pod/", `there is no "pod/" to delete: say delete KIND NAME, with the kind pod, configmap, secret, pvc, pv, storageclass or csidriver`},
		{"delete pod x -f y", "give names, or the manifests with -f, and not both"},
		{"delete pod -n a b/c", `"b/c" is not in the namespace "a": leave out -n, or the namespace before the slash`},
	} {
		n.expect("", strings.Fields(tc.args), "", "", tc.want)
	}
}

func TestWithoutANodeItSaysHowToStartOne(t *testing.T) {
	n := &node{t: t, stateDir: filepath.Join(t.TempDir(), "none")}
	_, _, err := n.run("", "delete", "pod", "a", "b")
	if err == nil || !strings.Contains(err.Error(), "start it with 'quartet up --state-dir "+n.stateDir+"'") {
		t.Errorf("without a node: %v", err)
	}
}
