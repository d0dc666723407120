package nodefeatures_test

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/nodefeatures"
)

const (
	webSockets = "ExtendWebSocketsToKubelet"
	podLevel   = "InPlacePodLevelResourcesVerticalScaling"
	initResize = "InPlacePodVerticalScalingInitContainers"
	restartAll = "RestartAllContainersOnContainerExits"
	tmpfs      = "InPlacePodVerticalScalingMemoryBackedVolumes"
)

func of(t *testing.T, change func(*kubeletconfigv1beta1.KubeletConfiguration)) *nodefeatures.Features {
	t.Helper()
	cfg := &kubeletconfigv1beta1.KubeletConfiguration{Port: 10250}
	change(cfg)
	features, err := nodefeatures.Of(cfg, "v1.37.1")
	if err != nil {
		t.Fatal(err)
	}
	return features
}

// TestDeclaredFeaturesAreTrue checks that a feature that is turned off is not declared, and that one that Quartet does
// not have is not declared even if the file turns it on.
func TestDeclaredFeaturesAreTrue(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*kubeletconfigv1beta1.KubeletConfiguration)
		want   []string
	}{
		"the defaults": {
			func(*kubeletconfigv1beta1.KubeletConfiguration) {}, []string{webSockets, podLevel, initResize, restartAll},
		},
		"no HTTP API": {
			func(c *kubeletconfigv1beta1.KubeletConfiguration) { c.EnableServer = ptr.To(false) },
			[]string{podLevel, initResize, restartAll},
		},
		"no port": {
			func(c *kubeletconfigv1beta1.KubeletConfiguration) { c.Port = 0 }, []string{podLevel, initResize, restartAll},
		},
		"a feature is off": {
			func(c *kubeletconfigv1beta1.KubeletConfiguration) { c.FeatureGates = map[string]bool{podLevel: false} },
			[]string{webSockets, initResize, restartAll},
		},
		"features that Quartet does not have are on": {
			func(c *kubeletconfigv1beta1.KubeletConfiguration) {
				c.FeatureGates = map[string]bool{
					tmpfs: true, "UserNamespacesHostNetworkSupport": true, "VolumeBindMountOptions": true,
					"DRANodeAllocatableResources": true, "DRAOptionalNodeOperations": true,
				}
			}, []string{webSockets, podLevel, initResize, restartAll},
		},
	} {
		if got := of(t, tc.change).Declared(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: the node declares %q, want %q", name, got, tc.want)
		}
	}
	if _, err := nodefeatures.Of(&kubeletconfigv1beta1.KubeletConfiguration{}, "unknown"); err == nil {
		t.Error("a version that is none is accepted")
	}
}

func TestWhatANewPodRequires(t *testing.T) {
	features := of(t, func(*kubeletconfigv1beta1.KubeletConfiguration) {})
	rule := []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
	for name, tc := range map[string]struct {
		spec v1.PodSpec
		want []string
	}{
		"nothing":             {v1.PodSpec{Containers: []v1.Container{{Name: "main"}}, HostNetwork: true}, nil},
		"a feature that is":   {v1.PodSpec{Containers: []v1.Container{{Name: "main", RestartPolicyRules: rule}}}, nil},
		"host network's user": {v1.PodSpec{HostNetwork: true, HostUsers: ptr.To(false)}, []string{"UserNamespacesHostNetworkSupport"}},
		"options of a mount": {v1.PodSpec{InitContainers: []v1.Container{{VolumeMounts: []v1.VolumeMount{
			{Name: "data", BindMountOptions: []string{"noexec"}},
		}}}}, []string{"VolumeBindMountOptions"}},
	} {
		got, err := features.Missing(&v1.Pod{Spec: tc.spec})
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: missing are %q, %v, want %q", name, got, err, tc.want)
		}
	}
}

// TestWhatAChangeRequires includes a change of the number of init containers, with which Kubernetes' code would panic.
func TestWhatAChangeRequires(t *testing.T) {
	podOf := func(cpu, size string, inits int) *v1.Pod {
		limits := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
		p := &v1.Pod{Spec: v1.PodSpec{
			Resources: &v1.ResourceRequirements{Limits: limits},
			Volumes: []v1.Volume{{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{
				Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse(size)),
			}}}},
		}}
		for i := range inits {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: fmt.Sprint("init", i)})
		}
		return p
	}
	without := of(t, func(c *kubeletconfigv1beta1.KubeletConfiguration) {
		c.FeatureGates = map[string]bool{podLevel: false}
	})
	for name, tc := range map[string]struct {
		before, after *v1.Pod
		want          []string
	}{
		"no change":                {podOf("1", "1Mi", 1), podOf("1", "1Mi", 1), nil},
		"the resources of the pod": {podOf("1", "1Mi", 0), podOf("2", "1Mi", 0), []string{podLevel}},
		"both":                     {podOf("1", "1Mi", 0), podOf("2", "2Mi", 0), []string{podLevel, tmpfs}},
		"fewer init containers":    {podOf("1", "1Mi", 2), podOf("1", "1Mi", 1), nil},
	} {
		got, err := without.MissingForUpdate(tc.before, tc.after)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: missing are %q, %v, want %q", name, got, err, tc.want)
		}
	}
}
