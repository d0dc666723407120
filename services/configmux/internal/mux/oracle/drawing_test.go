package oracle

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/podset"
)

// drawing draws steps whose pods come again and again, mostly with few changes or none.
type drawing struct {
	// pods has each pod as it was drawn last.
	pods map[types.UID]*v1.Pod
}

// step draws an update. Each source has some UIDs for itself, and there are some that any may give.
func (d drawing) step(t *rapid.T) step {
	s := step{
		source: rapid.SampledFrom(sourceNames()).Draw(t, "source"),
		op: rapid.SampledFrom([]podset.Op{
			podset.None, podset.None, podset.None, podset.Add, podset.Update, podset.Delete, podset.Remove,
		}).
			Draw(t, "op"),
	}
	uids := []types.UID{"x", "y"}
	for i := range 4 {
		uids = append(uids, types.UID(fmt.Sprintf("%s-%d", s.source, i)))
	}
	for _, uid := range rapid.SliceOfN(rapid.SampledFrom(uids), 0, 7).Draw(t, "uids") {
		s.pods = append(s.pods, d.pod(t, uid))
	}
	return s
}

// pod draws a pod that is as it was, or nearly so. Pods of several sources have the same names.
func (d drawing) pod(t *rapid.T, uid types.UID) *v1.Pod {
	p := d.pods[uid]
	if p == nil {
		p = pod(uid)
		_, number, _ := strings.Cut(string(uid), "-")
		p.Name = "pod-" + number
	}
	p = p.DeepCopy()
	for range rapid.SampledFrom([]int{0, 0, 1, 1, 2, 3}).Draw(t, "changes") {
		change(t, p)
	}
	d.pods[uid] = p
	return p.DeepCopy()
}

// change draws one field anew. Each has values that mean the same.
func change(t *rapid.T, p *v1.Pod) {
	switch rapid.IntRange(0, 11).Draw(t, "field") {
	case 0:
		p.Spec.Containers = rapid.SampledFrom([][]v1.Container{
			nil, {}, pod("").Spec.Containers, {{Name: "main", Image: "image:2"}},
		}).
			Draw(t, "containers")
	case 1:
		p.Spec.Containers = pod(
			"",
			limited(rapid.SampledFrom([]string{"1", "1000m", "1.0", "2"}).Draw(t, "cpu")),
		).Spec.Containers
	case 2:
		p.Spec.Volumes = rapid.SampledFrom([][]v1.Volume{nil, {}, {{Name: "data"}}}).Draw(t, "volumes")
	case 3:
		p.Spec.NodeSelector = rapid.SampledFrom([]map[string]string{nil, {}, {"disk": "ssd"}}).Draw(t, "selector")
	case 4:
		p.Labels = rapid.SampledFrom([]map[string]string{nil, {}, {"l": "1"}, {"l": "2"}}).Draw(t, "labels")
	case 5:
		p.Annotations = rapid.SampledFrom([]map[string]string{nil, {}, {"a": "1"}, {"a": "2"}, {"a": "1", "b": ""}}).
			Draw(t, "annotations")
	case 6:
		key := rapid.SampledFrom([]string{
			kubetypes.ConfigSourceAnnotationKey, kubetypes.ConfigFirstSeenAnnotationKey, kubetypes.ConfigMirrorAnnotationKey,
			kubetypes.ConfigHashAnnotationKey, "quartet.dev/traceparent",
		}).Draw(t, "own annotation")
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "value")
	case 7:
		p.Status.Phase = rapid.SampledFrom([]v1.PodPhase{"", v1.PodRunning, v1.PodFailed}).Draw(t, "phase")
	case 8:
		p.Status.Conditions = rapid.SampledFrom([][]v1.PodCondition{
			nil, {}, {{Type: v1.PodReady, Status: v1.ConditionTrue}},
		}).
			Draw(t, "conditions")
	case 9:
		p.DeletionTimestamp = nil
		if zone := rapid.SampledFrom([]*time.Location{nil, time.UTC, time.FixedZone("east", 3600)}).
			Draw(t, "deletion"); zone != nil {
			ending(zone)(p)
		}
	case 10:
		short, long := int64(5), int64(30)
		p.DeletionGracePeriodSeconds = rapid.SampledFrom([]*int64{nil, &short, &long}).Draw(t, "grace")
	case 11:
		p.Namespace = rapid.SampledFrom([]string{"default", "other"}).Draw(t, "namespace")
		p.Name = fmt.Sprintf("pod-%d", rapid.IntRange(0, 3).Draw(t, "name"))
	}
}

// copies returns copies of pods, for who keeps or changes them.
func copies(pods []*v1.Pod) []*v1.Pod {
	out := make([]*v1.Pod, len(pods))
	for i, p := range pods {
		out[i] = p.DeepCopy()
	}
	return out
}

// told is what was said, as text: one line for each message and each pod of it.
func told(said []message) []string {
	lines := []string{}
	for _, m := range said {
		lines = append(lines, m.op+" of "+m.source)
		for _, p := range m.pods {
			lines = append(
				lines,
				fmt.Sprintf("%s %s of %s: %s", m.op, p.UID, p.Annotations[kubetypes.ConfigSourceAnnotationKey], content(p)),
			)
		}
	}
	return lines
}

// content is all of a pod that is compared, as text: what means the same is written the same, and what the agents set
// themselves is left out.
func content(p *v1.Pod) string {
	data, err := p.Marshal()
	if err != nil {
		return err.Error()
	}
	p = &v1.Pod{}
	if err := p.Unmarshal(data); err != nil {
		return err.Error()
	}
	for key := range p.Annotations {
		switch key {
		case kubetypes.ConfigSourceAnnotationKey,
			kubetypes.ConfigFirstSeenAnnotationKey,
			kubetypes.ConfigMirrorAnnotationKey,
			kubetypes.ConfigHashAnnotationKey:
			delete(p.Annotations, key)
		}
		if strings.HasPrefix(key, "quartet.dev/") {
			delete(p.Annotations, key)
		}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// texts is pods as text.
func texts(pods []*v1.Pod) string {
	var text strings.Builder
	for _, p := range pods {
		fmt.Fprintf(&text, "\n\t%s", content(p))
	}
	return text.String()
}
