package nodecluster

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// TestAStaticPodHasItsMirror: the mirror pod exists while the manifest does, is recreated after a deletion, follows the
// manifest, and its deletion ends nothing.
func TestAStaticPodHasItsMirror(t *testing.T) {
	const ns, name = "mirror", "static-" + nodeName
	admin := space(t, ns)
	manifest := func(arg string) string {
		return `apiVersion: v1
kind: Pod
metadata: {name: static, namespace: mirror, labels: {app: static}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "` + livenode.Image + `", args: [` + arg + `]}
`
	}
	if err := node.Place("static.yaml", manifest("sleep")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.TakeAway("static.yaml"); err != nil {
			t.Error(err)
		}
	})
	awaitThat(t, "the mirror is Ready", func() bool { return livenode.Ready(get(t, admin, ns, name)) })
	mirror := get(t, admin, ns, name)
	if mirror.Annotations[corev1.MirrorPodAnnotationKey] == "" || mirror.Labels["app"] != "static" || len(mirror.OwnerReferences) != 1 ||
		mirror.OwnerReferences[0].UID != theNode(t, admin).UID {
		t.Errorf("the mirror is %+v", mirror.ObjectMeta)
	}
	before := started([]corev1.Pod{*mirror})
	kubectl(t, "delete", "pod", "-n", ns, name, "--grace-period=0", "--force")
	awaitThat(t, "it has a mirror again", func() bool {
		again := get(t, admin, ns, name)
		return again != nil && again.UID != mirror.UID && livenode.Ready(again)
	})
	if after := started([]corev1.Pod{*get(t, admin, ns, name)}); !slices.Equal(before, after) {
		t.Errorf("the deletion of the mirror changed containers from %q to %q", before, after)
	}
	if err := node.Place("static.yaml", manifest("env")); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the mirror is that of the new manifest", func() bool {
		now := get(t, admin, ns, name)
		return now != nil && now.Spec.Containers[0].Args[0] == "env" && livenode.Ready(now) && !slices.Equal(started([]corev1.Pod{*now}), before)
	})
	if err := node.TakeAway("static.yaml"); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the mirror is gone", func() bool { return get(t, admin, ns, name) == nil })
}
