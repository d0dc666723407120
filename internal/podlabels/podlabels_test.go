package podlabels_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
)

func testPod() *v1.Pod {
	grace := int64(7)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "web",
			Namespace: "shop",
			UID:       "u-1",
			Labels:    map[string]string{"app": "web", podlabels.PodUID: "forged"},
			Annotations: map[string]string{
				"note":                          "x",
				telemetry.AnnotationTraceparent: "forged",
				podlabels.StartCause:            "forged",
				podlabels.Resources:             "forged",
				podlabels.PodResources:          "forged",
			},
		},
		Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace},
	}
}

func TestSandboxCarriesThePodsLabelsAndCannotBeForged(t *testing.T) {
	labels, annotations, err := podlabels.Sandbox(testPod(), "")
	if err != nil {
		t.Fatal(err)
	}
	wantLabels := map[string]string{
		"app":                  "web",
		podlabels.PodName:      "web",
		podlabels.PodNamespace: "shop",
		podlabels.PodUID:       "u-1",
	}
	if diff := cmp.Diff(wantLabels, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"note": "x"}, annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestContainerIsRecoveredFromItsAnnotations(t *testing.T) {
	pod := testPod()
	c := &v1.Container{
		Name:                     "app",
		Image:                    "i:1",
		TerminationMessagePath:   "/dev/termination-log",
		TerminationMessagePolicy: v1.TerminationMessageReadFile,
		Ports:                    []v1.ContainerPort{{Name: "http", ContainerPort: 80}},
		Lifecycle: &v1.Lifecycle{
			PreStop: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/bye", Port: intstr.FromString("http")}},
		},
	}
	restart := podlabels.Restart{Count: 4, Step: 2, Cause: "exited with 1 (Error)"}
	_, annotations, err := podlabels.Container(pod, c, restart, "00-trace")
	if err != nil {
		t.Fatal(err)
	}
	if got := annotations[telemetry.AnnotationTraceparent]; got != "00-trace" {
		t.Errorf("traceparent = %q, want %q", got, "00-trace")
	}
	if got := podlabels.RestartOf(annotations, 99); got != restart {
		t.Errorf("RestartOf = %+v, want %+v", got, restart)
	}
	got, err := podlabels.Recover(annotations)
	if err != nil {
		t.Fatal(err)
	}
	want := podlabels.Recovered{
		PodTerminationGracePeriod: pod.Spec.TerminationGracePeriodSeconds, PreStop: c.Lifecycle.PreStop, Ports: c.Ports,
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Recover (-want +got):\n%s", diff)
	}
}

func TestTheResourcesThatAContainerWasMadeWithAreRecovered(t *testing.T) {
	c := &v1.Container{Name: "app", Image: "i:1", Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("0.5"), v1.ResourceMemory: resource.MustParse("1024Mi")},
		Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("2Gi")},
		Claims:   []v1.ResourceClaim{{Name: "gpu"}},
	}}
	_, annotations, err := podlabels.Container(testPod(), c, podlabels.Restart{}, "")
	if err != nil {
		t.Fatal(err)
	}
	got, ok := podlabels.ResourcesOf(annotations)
	if !ok || !got.Requests.Cpu().Equal(resource.MustParse("500m")) ||
		!got.Limits.Memory().Equal(resource.MustParse("2Gi")) ||
		len(got.Claims) > 0 {
		t.Errorf("got %+v, %v", got, ok)
	}
	// A container with the recovered resources is the same one.
	c.Resources.Requests, c.Resources.Limits = got.Requests, got.Limits
	if podlabels.Changed(c, annotations) {
		t.Error("the container counts as changed")
	}
	for _, text := range []string{"", "{"} {
		if _, ok := podlabels.ResourcesOf(map[string]string{podlabels.Resources: text}); ok {
			t.Errorf("%q says something", text)
		}
	}
	if _, ok := podlabels.ResourcesOf(nil); ok {
		t.Error("no annotation says something")
	}
}

func TestTheResourcesOfAPodAreRecoveredFromItsSandbox(t *testing.T) {
	pod := testPod()
	cpu := func(text string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(text)}}
	}
	whole := cpu("2")
	pod.Spec.InitContainers = []v1.Container{{Name: "first", Resources: cpu("1")}}
	pod.Spec.Containers = []v1.Container{{Name: "app", Resources: cpu("0.5")}, {Name: "other"}}
	pod.Spec.Resources = &whole
	_, annotations, err := podlabels.Sandbox(pod, "")
	if err != nil {
		t.Fatal(err)
	}
	all, ok := podlabels.AllResourcesOf(annotations)
	if first, app := all["first"], all["app"]; !ok || len(all) != 2 || first.Requests.Cpu().MilliValue() != 1000 ||
		app.Requests.Cpu().MilliValue() != 500 {
		t.Errorf("the containers have %v, %v", all, ok)
	}
	if got := podlabels.PodResourcesOf(annotations); got == nil || got.Requests.Cpu().MilliValue() != 2000 {
		t.Errorf("the pod has %v", got)
	}
	_, annotations, err = podlabels.Container(pod, &pod.Spec.Containers[0], podlabels.Restart{}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := podlabels.PodResourcesOf(annotations); got == nil || got.Requests.Cpu().MilliValue() != 2000 {
		t.Errorf("its container says that it has %v", got)
	}
	if podlabels.PodResourcesOf(map[string]string{podlabels.PodResources: "{"}) != nil {
		t.Error("what cannot be read says something")
	}
	if _, ok := podlabels.AllResourcesOf(map[string]string{podlabels.Resources: "{"}); ok {
		t.Error("what cannot be read says something")
	}
}

func TestRecoverNamesWhatItCannotRead(t *testing.T) {
	got, err := podlabels.Recover(map[string]string{
		podlabels.PreStopHandler: "{", podlabels.PodTerminationGracePeriod: "x", podlabels.TerminationMessagePath: "/m",
	})
	if err == nil || got.TerminationMessagePath != "/m" || got.PreStop != nil {
		t.Fatalf("got %+v, %v; want the readable part and an error", got, err)
	}
}

func TestRestartOfAForeignContainerIsItsAttempt(t *testing.T) {
	if got, want := podlabels.RestartOf(nil, 3), (podlabels.Restart{Count: 3, Step: 3}); got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestChangedOnlyForWhatNeedsARestart(t *testing.T) {
	base := v1.Container{Name: "app", Image: "i:1", Command: []string{"run"}, Resources: v1.ResourceRequirements{
		Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
	}}
	for name, test := range map[string]struct {
		change func(*v1.Container)
		want   bool
	}{
		"nothing":          {func(*v1.Container) {}, false},
		"image":            {func(c *v1.Container) { c.Image = "i:2" }, true},
		"command":          {func(c *v1.Container) { c.Command = []string{"walk"} }, true},
		"args":             {func(c *v1.Container) { c.Args = []string{"-v"} }, true},
		"env":              {func(c *v1.Container) { c.Env = []v1.EnvVar{{Name: "A", Value: "b"}} }, true},
		"security context": {func(c *v1.Container) { c.SecurityContext = &v1.SecurityContext{Privileged: new(bool)} }, true},
		"memory limit": {func(c *v1.Container) {
			c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
		}, false},
		"cpu request": {func(c *v1.Container) {
			c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}
		}, false},
		"no cpu limit": {func(c *v1.Container) { c.Resources.Limits = nil }, false},
		"huge pages": {func(c *v1.Container) {
			c.Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"),
				"hugepages-2Mi": resource.MustParse("2Mi")}
		}, true},
		"pull policy":     {func(c *v1.Container) { c.ImagePullPolicy = v1.PullAlways }, false},
		"readiness probe": {func(c *v1.Container) { c.ReadinessProbe = &v1.Probe{} }, false},
		"preStop hook":    {func(c *v1.Container) { c.Lifecycle = &v1.Lifecycle{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, annotations, err := podlabels.Container(testPod(), &base, podlabels.Restart{}, "")
			if err != nil {
				t.Fatal(err)
			}
			c := *base.DeepCopy()
			test.change(&c)
			if got := podlabels.Changed(&c, annotations); got != test.want {
				t.Errorf("Changed = %v, want %v", got, test.want)
			}
		})
	}
}

func TestAKubeletsContainerIsTakenOver(t *testing.T) {
	// The value is the one that Kubernetes' own test of its hash expects for this name and image.
	annotations := map[string]string{podlabels.ContainerHash: "8e45cbd0"}
	c := &v1.Container{Name: "test_container", Image: "foo/image:v1", Command: []string{"anything"}}
	if podlabels.Changed(c, annotations) {
		t.Error("a container that the kubelet has made with this spec counts as changed")
	}
	c.Image = "foo/image:v2"
	if !podlabels.Changed(c, annotations) {
		t.Error("a changed image goes unnoticed on a container that the kubelet has made")
	}
	if podlabels.Changed(c, nil) {
		t.Error("a container without any hash counts as changed")
	}
}

func TestRestartSurvivesTheRuntime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := podlabels.Restart{
			Count: rapid.IntRange(0, 1<<30).Draw(t, "count"),
			Step:  rapid.IntRange(0, 1<<30).Draw(t, "step"),
		}
		_, annotations, err := podlabels.Container(testPod(), &v1.Container{Name: "a"}, want, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := podlabels.RestartOf(annotations, 0); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}
