package nodeconfig_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// file returns a configuration file with some fields.
func file(path, fields string) nodeconfig.File {
	return nodeconfig.File{Path: path, Data: []byte(header + fields)}
}

// merge merges, and checks that the written file decodes to the same configuration.
func merge(t *testing.T, sources nodeconfig.Sources) nodeconfig.Merged {
	t.Helper()
	if sources.WorkDir == "" {
		sources.WorkDir = "/cwd"
	}
	merged, errs := nodeconfig.Merge(sources)
	if len(errs) > 0 {
		t.Fatalf("Merge() errors = %v, want none", errs)
	}
	decoded, errs := nodeconfig.Decode("/effective.yaml", merged.YAML)
	if len(errs) > 0 {
		t.Fatalf("the file that is written is wrong: %v\n%s", errs, merged.YAML)
	}
	if diff := cmp.Diff(merged.Kubelet, decoded.Kubelet); diff != "" {
		t.Errorf("the file that is written says something else (-merged +file):\n%s\n%s", diff, merged.YAML)
	}
	return merged
}

func TestDropInsAreMergedAsTheKubeletMergesThem(t *testing.T) {
	base := file(
		"/etc/base.yaml",
		"maxPods: 50\nstaticPodPath: manifests\nclusterDNS: [10.0.0.1, 10.0.0.2]\nevictionHard: {memory.available: 1Gi, nodefs.available: 5%}\n"+
			"featureGates: {EnvFiles: true, ContainerCheckpoint: true}\nauthentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n",
	)
	merged := merge(t, nodeconfig.Sources{File: &base, DropIns: []nodeconfig.File{
		file(
			"/etc/d/10.conf",
			"maxPods: 60\nclusterDNS: [10.0.0.3]\nevictionHard: {memory.available: 2Gi}\nfeatureGates: {ContainerCheckpoint: false}\n",
		),
		file(
			"/etc/d/20.conf",
			"maxPods: 70\nauthentication: {anonymous: {enabled: false}}\nauthorization: null\nsyncFrequency: 7s\n",
		),
	}})
	k := merged.Kubelet
	if k.MaxPods != 70 || k.SyncFrequency.Seconds() != 7 {
		t.Errorf("the last drop-in does not win: %d pods, %s", k.MaxPods, k.SyncFrequency.Duration)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, k.ClusterDNS); diff != "" {
		t.Errorf("a list is not replaced: %s", diff)
	}
	if diff := cmp.Diff(
		map[string]string{"memory.available": "2Gi", "nodefs.available": "5%"},
		k.EvictionHard,
	); diff != "" {
		t.Errorf("a mapping is not merged: %s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"EnvFiles": true, "ContainerCheckpoint": false}, k.FeatureGates); diff != "" {
		t.Errorf("feature gates are not merged: %s", diff)
	}
	if *k.Authentication.Webhook.Enabled || *k.Authentication.Anonymous.Enabled {
		t.Error("a drop-in has changed a field beside the one that it sets")
	}
	if k.Authorization.Mode != "Webhook" {
		t.Errorf("null is not the default again, but %s", k.Authorization.Mode)
	}
	if k.StaticPodPath != "/etc/manifests" {
		t.Errorf("a path of the file is not relative to it, but %s", k.StaticPodPath)
	}
}

// TestNullInADropInIsTheDefault tests each kind of field, with any earlier value.
func TestNullInADropInIsTheDefault(t *testing.T) {
	base := file(
		"/etc/base.yaml",
		"maxPods: 50\nsyncFrequency: 7s\nclusterDNS: [10.0.0.1]\nkubeReserved: {cpu: 100m, memory: 1Gi}\n"+
			"registryPullQPS: 0\nevictionHard: {memory.available: 1Gi}\nenforceNodeAllocatable: [none]\nlogging: {verbosity: 4}\n",
	)
	k := merge(t, nodeconfig.Sources{File: &base, DropIns: []nodeconfig.File{
		file("/etc/d/10.conf", "maxPods: null\nsyncFrequency: null\nclusterDNS: null\nkubeReserved: {cpu: null}\n"+
			"registryPullQPS: null\nevictionHard: null\nenforceNodeAllocatable: null\nlogging: {verbosity: null}\n"),
	}}).Kubelet
	if k.MaxPods != 110 || k.SyncFrequency.Seconds() != 60 || len(k.ClusterDNS) != 0 || *k.RegistryPullQPS != 5 ||
		k.Logging.Verbosity != 0 {
		t.Errorf(
			"%d pods, %s, servers %v, %d pulls, verbosity %d",
			k.MaxPods,
			k.SyncFrequency.Duration,
			k.ClusterDNS,
			*k.RegistryPullQPS,
			k.Logging.Verbosity,
		)
	}
	if diff := cmp.Diff(map[string]string{"memory": "1Gi"}, k.KubeReserved); diff != "" {
		t.Errorf("kubeReserved differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"pods"}, k.EnforceNodeAllocatable); diff != "" {
		t.Errorf("enforceNodeAllocatable differs (-want +got):\n%s", diff)
	}
	if len(k.EvictionHard) != 0 {
		t.Errorf("a kubelet has no thresholds then, and these are %v", k.EvictionHard)
	}
}

// TestNoThresholdsAndNothingToEnforceStaySo: an empty mapping or list differs from a missing one.
func TestNoThresholdsAndNothingToEnforceStaySo(t *testing.T) {
	base := file("/etc/base.yaml", "evictionHard: {}\nenforceNodeAllocatable: []\n")
	k := merge(t, nodeconfig.Sources{File: &base}).Kubelet
	if k.EvictionHard == nil || len(k.EvictionHard) != 0 || k.EnforceNodeAllocatable == nil ||
		len(k.EnforceNodeAllocatable) != 0 {
		t.Errorf("of a file: thresholds %v, enforced %v", k.EvictionHard, k.EnforceNodeAllocatable)
	}
	k = merge(t, nodeconfig.Sources{File: &base, DropIns: []nodeconfig.File{}}).Kubelet
	if len(k.EvictionHard) != 0 {
		t.Errorf("with a directory of drop-ins the thresholds are %v", k.EvictionHard)
	}
	// As a kubelet, which merges the rest in JSON.
	if diff := cmp.Diff([]string{"pods"}, k.EnforceNodeAllocatable); diff != "" {
		t.Errorf("with a directory of drop-ins: %s", diff)
	}
	none := file("/etc/base.yaml", "")
	k = merge(
		t,
		nodeconfig.Sources{File: &none, DropIns: []nodeconfig.File{file("/etc/d/10.conf", "enforceNodeAllocatable: []\n")}},
	).Kubelet
	if len(k.EnforceNodeAllocatable) != 0 {
		t.Errorf("of a drop-in: enforced %v, want none", k.EnforceNodeAllocatable)
	}
}

// A default that depends on another field depends on the main file alone, because the kubelet merges drop-ins into a
// file with its defaults.
func TestDropInsAreMergedIntoTheDefaultsOfTheFile(t *testing.T) {
	base := file("/etc/base.yaml", "")
	dropIn := file("/etc/d/10.conf", "nodeStatusUpdateFrequency: 20s\nevictionHard: {memory.available: 2Gi}\n")
	k := merge(t, nodeconfig.Sources{File: &base, DropIns: []nodeconfig.File{dropIn}}).Kubelet
	if k.NodeStatusReportFrequency.Minutes() != 5 {
		t.Errorf("nodeStatusReportFrequency is %s, want k.NodeStatusReportFrequency.Minutes 5",
			k.NodeStatusReportFrequency.Duration)
	}
	if k.EvictionHard["memory.available"] != "2Gi" || k.EvictionHard["nodefs.available"] != "10%" {
		t.Errorf("evictionHard is %v, want memory.available %q and nodefs.available %q", k.EvictionHard, "2Gi", "10%")
	}
	whole := file("/etc/base.yaml", "nodeStatusUpdateFrequency: 20s\n")
	if k := merge(t, nodeconfig.Sources{File: &whole}).Kubelet; k.NodeStatusReportFrequency.Seconds() != 20 {
		t.Errorf("of a file that sets it, nodeStatusReportFrequency is %s", k.NodeStatusReportFrequency.Duration)
	}
	// A drop-in that resets a field gets its default from the files, and not from a flag.
	reset := merge(t, nodeconfig.Sources{
		File: &base, DropIns: []nodeconfig.File{file("/etc/d/10.conf", "nodeStatusReportFrequency: 0s\n")},
		Settings: []nodeconfig.Setting{
			{Origin: "--node-status-update-frequency", Field: "nodeStatusUpdateFrequency", Value: "15s"},
		},
	}).Kubelet
	if reset.NodeStatusReportFrequency.Seconds() != 10 || reset.NodeStatusUpdateFrequency.Seconds() != 15 {
		t.Errorf("after a reset, nodeStatusReportFrequency is %s and nodeStatusUpdateFrequency %s",
			reset.NodeStatusReportFrequency.Duration, reset.NodeStatusUpdateFrequency.Duration)
	}
	alone := merge(
		t,
		nodeconfig.Sources{DropIns: []nodeconfig.File{file("/etc/d/10.conf", "evictionHard: {memory.available: 2Gi}\n")}},
	)
	if diff := cmp.Diff(map[string]string{"memory.available": "2Gi"}, alone.Kubelet.EvictionHard); diff != "" {
		t.Errorf("without a file: %s", diff)
	}
}

func TestSettingsAreStrongerThanFiles(t *testing.T) {
	base := file(
		"/etc/base.yaml",
		"maxPods: 50\nfeatureGates: {EnvFiles: true, ContainerCheckpoint: true}\nkubeReserved: {cpu: 100m}\nclusterDNS: [10.0.0.1]\n",
	)
	merged := merge(t, nodeconfig.Sources{
		File: &base, DropIns: []nodeconfig.File{file("/etc/d/10.conf", "maxPods: 60\n")},
		Settings: []nodeconfig.Setting{
			{
				Origin: "--feature-gates",
				Field:  "featureGates",
				Value:  map[string]any{"ContainerCheckpoint": false, "EventedPLEG": true},
				Add:    true,
			},
			{Origin: "--kube-reserved", Field: "kubeReserved", Value: map[string]any{"memory": "1Gi"}},
			{Origin: "--max-pods", Field: "maxPods", Value: 70},
			{Origin: "--eviction-hard", Field: "evictionHard", Value: map[string]any{}},
			{Origin: "--container-runtime-endpoint", Field: "containerRuntimeEndpoint", Value: "unix:///run/x.sock"},
			{Origin: "--pod-manifest-path", Field: "staticPodPath", Value: "manifests"},
			{Origin: "--anonymous-auth", Field: "authentication.anonymous.enabled", Value: false},
		},
	})
	k := merged.Kubelet
	if diff := cmp.Diff(
		map[string]bool{"EnvFiles": true, "ContainerCheckpoint": false, "EventedPLEG": true},
		k.FeatureGates,
	); diff != "" {
		t.Errorf("the merged configuration differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"memory": "1Gi"}, k.KubeReserved); diff != "" {
		t.Errorf("kubeReserved differs (-want +got):\n%s", diff)
	}
	if k.MaxPods != 70 || len(k.EvictionHard) != 0 || k.StaticPodPath != "/cwd/manifests" {
		t.Errorf("%d pods, thresholds %v, manifests in %s, want 70, none and %q",
			k.MaxPods, k.EvictionHard, k.StaticPodPath, "/cwd/manifests")
	}
	if k.ContainerRuntimeEndpoint != "unix:///run/x.sock" || k.ImageServiceEndpoint != "unix:///run/x.sock" {
		t.Errorf("the runtime is %s, images are of %s, want %q and %q",
			k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, "unix:///run/x.sock", "unix:///run/x.sock")
	}
	for _, want := range []string{"# /etc/base.yaml:3, /etc/d/10.conf:3, --max-pods\nmaxPods: 70\n", "# /etc/base.yaml:6\nclusterDNS:\n- 10.0.0.1\n"} {
		if !strings.Contains(string(merged.YAML), want) {
			t.Errorf("the file lacks %q:\n%s", want, merged.YAML)
		}
	}
	if strings.Contains(string(merged.YAML), "syncFrequency") {
		t.Errorf("the file has a field that nobody sets:\n%s", merged.YAML)
	}
}

// TestRunOnceIsRefused, as by the kubelet since the removal of the mode.
func TestRunOnceIsRefused(t *testing.T) {
	_, errs := nodeconfig.Merge(
		nodeconfig.Sources{
			WorkDir:  "/",
			Settings: []nodeconfig.Setting{{Origin: "--runonce", Field: "runOnce", Value: true}},
		},
	)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "--runonce: runOnce: is refused") {
		t.Errorf("Merge() = %q, want exactly one and errs[0].Error with %q", errs, "--runonce: runOnce: is refused")
	}
}

func TestDefaultsGiveWayToTheFile(t *testing.T) {
	defaults := []nodeconfig.Setting{{Origin: "a default", Field: "address", Value: "0.0.0.0"}}
	if got := merge(t, nodeconfig.Sources{Defaults: defaults}).Kubelet.Address; got != "0.0.0.0" {
		t.Errorf("without a file: %s", got)
	}
	base := file("/etc/base.yaml", "address: 10.0.0.9\n")
	if got := merge(t, nodeconfig.Sources{File: &base, Defaults: defaults}).Kubelet.Address; got != "10.0.0.9" {
		t.Errorf("with a file: %s, want %q", got, "10.0.0.9")
	}
	dropIn := file("/etc/d/10.conf", "address: 10.0.0.9\n")
	if got := merge(
		t,
		nodeconfig.Sources{DropIns: []nodeconfig.File{dropIn}, Defaults: defaults},
	).Kubelet.Address; got != "10.0.0.9" {
		t.Errorf("with a drop-in: %s, want %q", got, "10.0.0.9")
	}
}

func TestProblemsAreReportedWhereTheyWereSet(t *testing.T) {
	base := file("/etc/base.yaml", "maxPods: 50\npodsPerCore: -1\nclusterDNS: [10.0.0.1]\n")
	_, errs := nodeconfig.Merge(nodeconfig.Sources{
		File:     &base,
		WorkDir:  "/",
		DropIns:  []nodeconfig.File{file("/etc/d/10.conf", "maxPods: 60\nclusterDNS:\n- 10.0.0.1\n- nonsense\n")},
		Settings: []nodeconfig.Setting{{Origin: "--max-pods", Field: "maxPods", Value: -7}},
	})
	var got []string
	for _, err := range errs {
		got = append(got, err.Error())
	}
	want := []string{
		"--max-pods: maxPods: is -7, must be more than 0",
		`/etc/base.yaml:4: podsPerCore: is -1, must be 0 or more`,
		`/etc/d/10.conf:6: clusterDNS[1]: "nonsense" is not an IP address`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestADropInMustBeAConfiguration(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"no kind":        {"maxPods: 5\n", "/d/10.conf: apiVersion: is missing: must be kubelet.config.k8s.io/v1beta1"},
		"another kind":   {"apiVersion: v1\nkind: Pod\n", `/d/10.conf:1: apiVersion: is "v1", must be kubelet.config.k8s.io/v1beta1`},
		"unknown field":  {header + "maxPodz: 5\n", "/d/10.conf:3: maxPodz: there is no such field in a KubeletConfiguration: did you mean maxPods?"},
		"another type":   {header + "maxPods: many\n", "/d/10.conf:3: maxPods: must be a whole number, not string"},
		"nothing in it":  {"", "/d/10.conf: apiVersion: is missing: must be kubelet.config.k8s.io/v1beta1"},
		"something else": {"[1, 2]", "/d/10.conf: the file must be a mapping of fields to values"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := nodeconfig.Merge(
				nodeconfig.Sources{WorkDir: "/", DropIns: []nodeconfig.File{{Path: "/d/10.conf", Data: []byte(test.content)}}},
			)
			if len(errs) == 0 || errs[0].Error() != test.want {
				t.Errorf("got %q, want %q", errs, test.want)
			}
		})
	}
}
