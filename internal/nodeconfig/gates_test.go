package nodeconfig

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestFeatureGates(t *testing.T) {
	for _, test := range []struct {
		name, gates     string
		errors, ignored []string
	}{
		{name: "the defaults", gates: "NodeSwap: true, RotateKubeletServerCertificate: true, GRPCContainerProbeTLS: false, AllAlpha: false"},
		{name: "a feature that Quartet does not have, off", gates: "ResourceHealthStatusMessage: false"},
		{name: "features that Quartet does not have",
			gates: "SystemdWatchdog: true, DRADeviceTaints: false", ignored: []string{
				"f:3: featureGates.DRADeviceTaints: false", "f:3: featureGates.SystemdWatchdog: true"}},
		{name: "not the default", gates: "EnvFiles: false, GRPCContainerProbeTLS: true", ignored: []string{
			"f:3: featureGates.EnvFiles: false", "f:3: featureGates.GRPCContainerProbeTLS: true"}},
		{name: "both are implemented", gates: "EventedPLEG: true, MemoryQoS: false, QOSReserved: true, " +
			"DefaultPodSysctls: true, InPlacePodLevelResourcesVerticalScaling: false, PodsAPI: false, SELinuxMount: false, " +
			"CSIVolumeHealth: true"},
		{name: "many at once", gates: "AllAlpha: true", ignored: []string{"f:3: featureGates.AllAlpha: true"}},
		{name: "unknown", gates: "NodeSwop: true, Nothing: false", errors: []string{
			"f:3: featureGates.NodeSwop: there is no such feature gate in this version of Kubernetes: did you mean NodeSwap?",
			"f:3: featureGates.Nothing: there is no such feature gate in this version of Kubernetes: remove it"}},
		{name: "locked", gates: "NodeSwap: false", errors: []string{
			"f:3: featureGates.NodeSwap: cannot be false, the feature is locked to true: remove the gate"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			decoded, problems := Decode("f", []byte(head+"featureGates: {"+test.gates+"}\n"))
			var errors []string
			for _, problem := range problems {
				errors = append(errors, problem.Error())
			}
			if diff := cmp.Diff(test.errors, errors); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if len(problems) > 0 {
				return
			}
			if diff := cmp.Diff(test.ignored, decoded.unsupported(SyncLoop)); diff != "" {
				t.Errorf("named as not acted on (-want +got):\n%s", diff)
			}
		})
	}
}

// TestListsOfGatesAreTrue: a feature is missing only if it is on by default, and every name is a gate.
func TestListsOfGatesAreTrue(t *testing.T) {
	for _, name := range missingFeatures {
		if !gates[name].value {
			t.Errorf("%s is not on by default, or no gate of this version", name)
		}
	}
	for _, name := range switchableFeatures {
		if _, found := gates[name]; !found || slices.Contains(missingFeatures, name) {
			t.Errorf("%s is no gate of this version, or a missing feature", name)
		}
	}
}
