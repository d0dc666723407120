package configmux

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/test/eventually"
)

// greedy returns a manifest of a pod with host privileges.
func greedy(name, image string) string {
	return strings.NewReplacer(
		"spec: {", "spec: {hostNetwork: true, hostPID: true, hostIPC: true, ",
		"image: "+image, "image: "+image+", securityContext: {privileged: true}",
	).Replace(manifest(name, "", image))
}

// One source is allowed all privileges by the configuration; the privileged pod of another source is refused, and its
// other pods run.
func TestOnlyTheSourcesThatMayGivePrivilegesDo(t *testing.T) {
	p := newProcess(t)
	only := []string{"file"}
	p.cfg.HostPrivileges = nodeconfig.HostPrivileges{HostNetwork: only, HostPID: only, HostIPC: only, Privileged: only}
	p.write("a.yaml", greedy("a", "i:1"))
	server := p.serves(greedy("b", "i:1") + "---\n" + manifest("c", "", "i:1"))
	p.run()
	f := follow(p)
	f.until("ADD a-node i:1", "ADD c-node i:1")
	if errs := p.source("file").GetErrors(); len(errs) != 0 {
		t.Errorf("errors of the file: %v, want none", errs)
	}
	var fields []string
	for _, e := range p.source("http").GetErrors() {
		fields = append(fields, e.GetField())
		if e.GetPath() != server.URL+"/pods" || e.GetPod() != "default/b-node" ||
			!strings.Contains(e.GetMessage(), `a pod of the source "http" must not `) ||
			!strings.HasSuffix(e.GetMessage(), " of configmux and syncloop; the pod is left out: mend the answer") {
			t.Errorf("error %v, want Path %v, Pod %q, Message with %q and Message ending with %q",
				e, server.URL+"/pods", "default/b-node", `a pod of the source "http" must not `,
				" of configmux and syncloop; the pod is left out: mend the answer")
		}
	}
	want := []string{"spec.containers[0].securityContext.privileged", "spec.hostIPC", "spec.hostNetwork", "spec.hostPID"}
	if !slices.Equal(fields, want) {
		t.Errorf("refused %q, want %q", fields, want)
	}
	server.answer(manifest("b", "", "i:1") + "---\n" + manifest("c", "", "i:1"))
	f.until("ADD a-node i:1", "ADD c-node i:1", "ADD b-node i:1")
	eventually.That(p.t, "nothing is wrong any more", func() bool { return len(p.source("http").GetErrors()) == 0 })
}

func TestAnAppliedPodThatAsksForMoreThanItMayIsRefusedByField(t *testing.T) {
	p := newProcess(t)
	p.cfg.HostPrivileges.HostPID = []string{"local"}
	p.run()
	p.ready()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       v1.PodSpec{HostNetwork: true, HostPID: true, Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}
	data, err := pod.Marshal()
	must(t, err)
	_, err = p.client.ApplyPod(t.Context(), &configv1.ApplyPodRequest{Pod: data})
	if status.Code(err) != codes.InvalidArgument {
		t.Fatalf("applied: %v, want INVALID_ARGUMENT", err)
	}
	var violations []string
	for _, detail := range status.Convert(err).Details() {
		if bad, is := detail.(*errdetails.BadRequest); is {
			for _, v := range bad.GetFieldViolations() {
				violations = append(violations, v.GetField()+": "+v.GetDescription())
			}
		}
	}
	if len(violations) != 1 || violations[0] !=
		`spec.hostNetwork: Forbidden: a pod of the source "local" must not use the machine's network: leave the field out, or name "local" in --host-network-sources of configmux and syncloop` {
		t.Errorf("violations %q, want exactly one and violations[0] %q",
			violations,
			`spec.hostNetwork: Forbidden: a pod of the source "local" must not use the machine's network: leave the field out, or name "local" in --host-network-sources of configmux and syncloop`)
	}
}

// Annotations of the agent in a manifest are ignored and reported, and the pod runs.
func TestForgedAnnotationsAreListedAndThePodRuns(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", strings.Replace(
		manifest("a", "a1", "i:1"),
		"name: a",
		`name: a, annotations: {kubernetes.io/config.source: api, kubernetes.io/config.mirror: x, quartet.dev/traceparent: x, mine: kept}`,
		1,
	))
	p.run()
	p.ready()
	expect(t, p.watch(nil), "OPENED", "SNAPSHOT ADD a-node i:1", "SNAPSHOT source file ready=true", "SYNCED")
	pods, err := p.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
	must(t, err)
	got := decode(t, pods.GetPods()[0]).Annotations
	if got["kubernetes.io/config.source"] != "file" || got["mine"] != "kept" || got["kubernetes.io/config.mirror"] != "" ||
		got["quartet.dev/traceparent"] != "" {
		t.Errorf("annotations %v, want kubernetes.io/config.source %q, mine %q, no kubernetes.io/config.mirror and no quartet.dev/traceparent",
			got, "file", "kept")
	}
	var fields []string
	for _, e := range p.source("file").GetErrors() {
		fields = append(fields, e.GetField())
		if e.GetPath() != filepath.Join(p.dir, "a.yaml") || e.GetPod() != "default/a-node" ||
			!strings.Contains(e.GetMessage(), "it is ignored") {
			t.Errorf("error %v, want Path %v, Pod %q and Message with %q",
				e, filepath.Join(p.dir, "a.yaml"), "default/a-node", "it is ignored")
		}
	}
	want := []string{
		"metadata.annotations[kubernetes.io/config.mirror]",
		"metadata.annotations[kubernetes.io/config.source]",
		"metadata.annotations[quartet.dev/traceparent]",
	}
	if !slices.Equal(fields, want) {
		t.Errorf("listed %q, want %q", fields, want)
	}
}
