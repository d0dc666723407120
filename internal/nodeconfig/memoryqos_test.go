package nodeconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMemoryQoS covers the values that the kubelet accepts and refuses.
func TestMemoryQoS(t *testing.T) {
	const off = "featureGates: {MemoryQoS: false}\n"
	for _, test := range []struct{ name, text, want string }{
		{"the defaults", "", ""},
		{"the defaults, off", off, ""},
		{"both", "memoryThrottlingFactor: 0.8\nmemoryReservationPolicy: TieredReservation", ""},
		{"explicit defaults", "memoryReservationPolicy: None", ""},
		{"the largest", "memoryThrottlingFactor: 1", ""},
		{"the default of earlier versions, off", off + "memoryThrottlingFactor: 0.9\nmemoryReservationPolicy: None", ""},
		{"zero", "memoryThrottlingFactor: 0", "f:3: memoryThrottlingFactor: is 0, must be more than 0 and at most 1"},
		{"more than all", "memoryThrottlingFactor: 1.1",
			"f:3: memoryThrottlingFactor: is 1.1, must be more than 0 and at most 1"},
		{"throttled, off", off + "memoryThrottlingFactor: 0.8",
			"f:4: memoryThrottlingFactor: needs the feature gate MemoryQoS: leave it out, or remove the gate"},
		{"protected, off", off + "memoryReservationPolicy: TieredReservation",
			"f:4: memoryReservationPolicy: needs the feature gate MemoryQoS: leave it out, or remove the gate"},
		{"unknown", "memoryReservationPolicy: Some",
			`f:3: memoryReservationPolicy: is "Some", must be None or TieredReservation`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, problems := Decode("f", []byte(head+test.text+"\n"))
			got := ""
			for _, problem := range problems {
				got += problem.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
