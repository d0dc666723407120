package configmux

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/test/damage"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestPodsAreDesiredWhateverHappenedToTheFilesOfConfigmux damages each file of the state directory in each way. The pod
// of a manifest is there, and so is the applied one unless its own file is damaged, which is reported.
func TestPodsAreDesiredWhateverHappenedToTheFilesOfConfigmux(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("filed", "", "i:1"))
	p.run()
	data, err := (&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "applied", Namespace: "default"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i:1"}}},
	}).Marshal()
	must(t, err)
	_, err = p.client.ApplyPod(t.Context(), &configv1.ApplyPodRequest{Pod: data}, grpc.WaitForReady(true))
	must(t, err)
	_, err = p.tryApplySecret("login", "s")
	must(t, err)
	_, err = p.applyConfigMap(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, false)
	must(t, err)
	p.ready()
	p.stop()
	known := []string{
		"configmux-manifests.json", "applied/*.json", "applied/*.secret", "applied/*.configmap", "secrets.key",
		"configmux.lock",
	}
	damage.Each(t, p.cfg.StateDir, known, func(t *testing.T, file string, kind damage.Kind) {
		var log logbuffer.Buffer
		p.tel.Logger = slog.New(slog.NewTextHandler(&log, nil))
		p.run()
		p.ready()
		pods, err := p.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
		must(t, err)
		var names []string
		for _, pod := range pods.GetPods() {
			decoded := &v1.Pod{}
			must(t, decoded.Unmarshal(pod.GetPod()))
			names = append(names, decoded.Name)
		}
		want := []string{"applied-node", "filed-node"}
		if filepath.Ext(file) == ".json" && strings.Contains(file, "/applied/") && !slices.Contains(names, want[0]) {
			want = want[1:]
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("desired are %q, want %q", names, want)
		}
		sources, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		must(t, err)
		p.stop()
		said := log.String() + sources.String()
		if kind.Shows && filepath.Ext(file) != ".lock" && !strings.Contains(said, file) {
			t.Errorf("nothing is said of %s: %s", file, said)
		}
	})
}
