package claimbook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
)

// claim returns the claim shop/NAME of drivers; its UID is its name.
func claim(name string, drivers ...string) claimbook.Claim {
	c := claimbook.Claim{Name: full(name), UID: types.UID(name), Drivers: map[string]claimbook.Driver{}}
	for _, driver := range drivers {
		c.Drivers[driver] = claimbook.Driver{}
	}
	return c
}

func full(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

func names(claims []claimbook.Claim) string {
	var all []string
	for _, c := range claims {
		all = append(all, c.Name.Name)
	}
	return strings.Join(all, " ")
}

// TestASharedClaimIsPreparedOnce and unprepared when its last pod has left.
func TestASharedClaimIsPreparedOnce(t *testing.T) {
	b := claimbook.New()
	use := func(pod types.UID, claims ...claimbook.Claim) string {
		prepare, err := b.Use(pod, claims)
		if err != nil {
			t.Fatal(err)
		}
		return names(prepare)
	}
	own, shared := claim("own", "gpu"), claim("shared", "gpu", "nic")
	if got := use("a", own, shared); got != "own shared" {
		t.Errorf("the first pod prepares %q", got)
	}
	b.Answered(own.Name, "gpu", []claimbook.Device{{Pool: "p", Name: "0", CDI: []string{"x/gpu=0"}}})
	b.Prepared(own.Name)
	if got := use("b", shared); got != "shared" {
		t.Errorf("while a claim is not prepared, the second pod prepares %q", got)
	}
	b.Prepared(shared.Name)
	if got := use("b", shared); got != "" {
		t.Errorf("after that, it prepares %q", got)
	}
	if diff := cmp.Diff(map[string]int{claimbook.AnyDriver: 2, "gpu": 2, "nic": 1}, b.InUse()); diff != "" {
		t.Errorf("claims in use (-want +got):\n%s", diff)
	}
	users := b.Users("gpu", func(d *claimbook.Device) bool { return d.Name == "0" })
	if got := users; !slices.Equal(got, []types.UID{"a"}) {
		t.Errorf("the device has the users %v", got)
	}
	if got := names(b.Leave("a")); got != "own" {
		t.Errorf("the first pod unprepares %q", got)
	}
	if got := names(b.Leave("a")); got != "own" {
		t.Errorf("after a failure, it unprepares %q", got)
	}
	if _, err := b.Use("c", []claimbook.Claim{own}); err == nil || err.Error() != "ResourceClaim own is being unprepared" {
		t.Errorf("another pod gets %v", err)
	}
	b.Prepared(own.Name)
	b.Left(own.Name)
	if got := b.Pods(); !slices.Equal(got, []types.UID{"b"}) {
		t.Errorf("the pods are %v", got)
	}
	b.Left(shared.Name) // it is in use
	if got := names(b.Leave("b")); got != "shared" {
		t.Errorf("the last pod unprepares %q", got)
	}
	b.Left(shared.Name)
	if len(b.All()) > 0 || len(b.Leave("b")) > 0 {
		t.Errorf("left: %v", b.All())
	}
}

// TestAnotherClaimOfTheSameNameIsRefused, and the refused pod uses nothing.
func TestAnotherClaimOfTheSameNameIsRefused(t *testing.T) {
	b := claimbook.New()
	b.Load(claimbook.Entry{Claim: claim("data", "gpu"), Pods: []types.UID{"old"}})
	fresh := claim("data", "gpu")
	fresh.UID = "fresh"
	b.Load(claimbook.Entry{Claim: fresh, Pods: []types.UID{"other"}})
	const want = "old ResourceClaim with same name data and different UID data still exists (previous pod force-deleted?!)"
	if _, err := b.Use("new", []claimbook.Claim{claim("a", "gpu"), fresh}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got := b.Pods(); !slices.Equal(got, []types.UID{"old"}) {
		t.Errorf("the pods are %v", got)
	}
	prepare, err := b.Use("second", []claimbook.Claim{claim("data", "gpu")})
	if err != nil || names(prepare) != "data" {
		t.Errorf("a claim of an earlier process is prepared again: %v, %v", prepare, err)
	}
}

func TestDevicesAreForRequests(t *testing.T) {
	all, one := claimbook.Device{}, claimbook.Device{Requests: []string{"fast"}}
	if !all.For("") || !all.For("fast") || !one.For("") || !one.For("fast") || one.For("slow") {
		t.Error("a device is for a wrong request")
	}
}

// TestAnAllocatedClaimNamesItsDrivers checks what the API server's object becomes, with the kubelet's errors.
func TestAnAllocatedClaimNamesItsDrivers(t *testing.T) {
	object := func(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "data"},
			Status: resourceapi.ResourceClaimStatus{
				Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
			},
		}
	}
	result := func(driver string, skips ...resourceapi.SkipNodeOperation) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: driver, SkipNodeOperations: skips}
	}
	const prepare = resourceapi.SkipNodeOperationNodePrepareResources
	for _, tc := range []struct {
		object *resourceapi.ResourceClaim
		want   string
	}{
		{object: &resourceapi.ResourceClaim{}, want: "not allocated"},
		{object: object(result("gpu"), result("nic"), result("gpu")), want: "gpu nic"},
		{object: object(result("gpu", prepare), result("gpu")), want: "gpu"},
		{
			object: object(result("gpu", prepare), result("gpu", resourceapi.SkipNodeOperationAll)),
			want:   "DRAOptionalNodeOperations feature gate is disabled on kubelet",
		},
		{
			object: object(result("gpu", resourceapi.SkipNodeOperationAll)),
			want:   "DRAOptionalNodeOperations feature gate is disabled on kubelet",
		},
	} {
		c, err := claimbook.FromAPI(tc.object)
		got := strings.Join(c.DriverNames(), " ")
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
	skips := claimbook.Driver{Skips: []resourceapi.SkipNodeOperation{prepare}}
	if skips.Needs(prepare) || !skips.Needs(resourceapi.SkipNodeOperationNodeUnprepareResources) {
		t.Error("the wrong call is skipped")
	}
}
