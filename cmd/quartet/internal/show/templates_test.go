package show

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// TestTemplates tests kubectl's templates, on objects of Kubernetes and on those of this node alone.
func TestTemplates(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.putPod(pod("default", "hello-node-1", "web", "sidecar"), "file", syncing)
	waiting := pod("kube-system", "begun-node-1", "main")
	waiting.Status, waiting.Generation = v1.PodStatus{Phase: v1.PodPending}, 12345678
	n.putPod(waiting, "", syncing)
	n.engine.setWorkers(
		&enginev1.Worker{PodUid: "u-1", Namespace: "default", Name: "hello-node-1", State: syncing, Busy: true},
		&enginev1.Worker{PodUid: "u-2", Namespace: "kube-system", Name: "begun-node-1", State: syncing},
	)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"pods", "hello", "-o", "jsonpath={.status.podIP} {.spec.containers[*].name}"}, "10.88.0.7 web sidecar"},
		{[]string{"pods", "-o", "jsonpath={range .items[*]}{.metadata.name}={.status.phase}{'\\n'}{end}"}, "hello-node-1=Running\nbegun-node-1=Pending\n"},
		{[]string{"pods", "hello", "-o", "jsonpath={.status.nominatedNodeName}"}, ""},
		{[]string{"pods", "hello", "-o", "jsonpath-as-json={.spec.containers[*].name}"}, "[\n    \"web\",\n    \"sidecar\"\n]\n"},
		{[]string{"pods", "hello", "-o", "jsonpath-file=" + file("path", "{.status.podIP}")}, "10.88.0.7"},
		{[]string{"pods", "-o", `go-template={{range .items}}{{.metadata.name}} {{len .spec.containers}};{{end}}`}, "hello-node-1 2;begun-node-1 1;"},
		{[]string{"pods", "hello", "-o", "go-template-file=" + file("template", "{{.kind}}")}, "Pod"},
		{
			[]string{"pods", "-o", "custom-columns=POD:.metadata.name,IP:{status.podIP},NAMES:.spec.containers[*].name,GEN:.metadata.generation"},
			"POD            IP          NAMES         GEN\nhello-node-1   10.88.0.7   web,sidecar   <none>\nbegun-node-1   <none>      main          12345678\n",
		},
		{[]string{"pods", "hello", "-o", "custom-columns-file=" + file("columns", "POD START\n.metadata.name status.startTime\n")}, "POD            START\nhello-node-1   2026-05-01T10:00:00Z\n"},
		{[]string{"workers", "-o", "jsonpath={.workers[?(@.busy==true)].name}"}, "hello-node-1"},
		{[]string{"workers", "-o", "custom-columns=POD:.name,BUSY:.busy"}, "POD            BUSY\nhello-node-1   true\nbegun-node-1   false\n"},
	} {
		if got := n.must(append([]string{"get"}, tc.args...)...); got != tc.want {
			t.Errorf("%q prints\n%s\nwant\n%s", tc.args, got, tc.want)
		}
	}
	watch := n.start("get", "pods", "-w", "-o", "custom-columns=POD:.metadata.name,PHASE:.status.phase")
	watch.until(watch.out, "hello-node-1   Running")
	watch.until(watch.out, "begun-node-1   Pending")
	if got := strings.Count(watch.out.String(), "PHASE"); got != 1 {
		t.Errorf("the names of the columns are printed %d times", got)
	}
}

// TestATemplateThatFailsIsNamedWithoutTheObject: kubectl prints the whole object in the place of the output.
func TestATemplateThatFailsIsNamedWithoutTheObject(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.putPod(pod("default", "hello-node-1", "web"), "", syncing)
	out, _, err := n.run("get", "pods", "hello", "-o", "go-template={{.kind.name}}")
	if err == nil || !strings.Contains(err.Error(), "the template fails for this object") || out != "" {
		t.Errorf("it prints %q and fails with %v, want only an error that says that the template fails", out, err)
	}
}

func TestATemplateThatIsWrongIsNamedBeforeAnythingIsAsked(t *testing.T) {
	n := newNode(t)
	for output, want := range map[string]string{
		"jsonpath": "needs a template: jsonpath=TEMPLATE", "jsonpath=": "needs a template", "jsonpath={.a": "the template is not valid",
		"go-template={{.a": "the template is not valid", "go-template-file=/nowhere": "reading the template: open /nowhere",
		"custom-columns=NAME": `the column "NAME" is not NAME:PATH`, "custom-columns=NAME:": "is not like .metadata.name",
		"custom-columns=A:{.b": "has no closing brace", "custom-columns=A:.b[": "is not valid", "custom-columns-file=/dev/null": "0 names",
		"template={{.a}}": "must be wide, json, yaml or name, or one of jsonpath,",
	} {
		if _, _, err := n.run("get", "pods", "-o", output); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", output, err, want)
		}
	}
}
