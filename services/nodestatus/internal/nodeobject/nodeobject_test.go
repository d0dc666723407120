package nodeobject

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodeip"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

const gibi = 1 << 30

func input(t *testing.T) Input {
	t.Helper()
	thresholds, err := eviction.ThresholdsOf(&kubeletconfigv1beta1.KubeletConfiguration{EvictionHard: map[string]string{
		"memory.available":  "100Mi",
		"nodefs.available":  "10%",
		"nodefs.inodesFree": "5%",
		"imagefs.available": "15%",
		"pid.available":     "100",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return Input{
		Settings: Settings{
			Name:              "node-1",
			Labels:            map[string]string{"zone": "a"},
			MaxPods:           110,
			KubernetesVersion: "v1.37.1",
			Reserved: v1.ResourceList{
				v1.ResourceCPU:    resource.MustParse("500m"),
				v1.ResourceMemory: resource.MustParse("1Gi"),
				"pid":             resource.MustParse("10"),
			},
			Thresholds:         thresholds,
			PressureTransition: 5 * time.Minute,
		},
		Machine: facts.Machine{
			CPUs:            4,
			MemoryBytes:     16 * gibi,
			HugePages:       []facts.HugePages{{PageBytes: 2 << 20, Pages: 512}, {PageBytes: gibi}},
			MachineID:       "m",
			BootID:          "b",
			KernelVersion:   "6.18",
			OSImage:         "Debian",
			OperatingSystem: "linux",
			Architecture:    "amd64",
		},
		Readings: facts.Readings{
			MemoryAvailableBytes: 8 * gibi,
			NodeFS: facts.Filesystem{
				CapacityBytes:  100 * gibi,
				AvailableBytes: 50 * gibi,
				Inodes:         1000,
				InodesFree:     500,
			},
			MaxPIDs:     32768,
			RunningPIDs: 300,
			IP:          net.IPv4(10, 0, 0, 5),
		},
		PLEG: Peer{
			State:    PeerHealthy,
			LastGood: start,
			Runtime: &Runtime{
				Name:     "containerd",
				Version:  "2.4.2",
				Ready:    true,
				Handlers: []Handler{{Name: ""}, {Name: "runc", UserNamespaces: true}},
			},
		},
		SyncLoop:  Peer{State: PeerHealthy, LastGood: start},
		StartedAt: start,
		Now:       start,
	}
}

func condition(t *testing.T, state State, kind v1.NodeConditionType) v1.NodeCondition {
	t.Helper()
	for _, c := range state.Node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	t.Fatalf("there is no condition %s", kind)
	return v1.NodeCondition{}
}

func TestNodeOfAHealthyMachine(t *testing.T) {
	node := Build(input(t)).Node
	amounts := func(list v1.ResourceList) map[string]string {
		all := make(map[string]string)
		for name, quantity := range list {
			all[string(name)] = quantity.String()
		}
		return all
	}
	type summary struct {
		Name, Runtime, Kubelet string
		Labels                 map[string]string
		Addresses              []v1.NodeAddress
		Capacity, Allocatable  map[string]string
		Conditions, Handlers   []string
	}
	got := summary{
		Name:        node.Name,
		Runtime:     node.Status.NodeInfo.ContainerRuntimeVersion,
		Kubelet:     node.Status.NodeInfo.KubeletVersion,
		Labels:      node.Labels,
		Addresses:   node.Status.Addresses,
		Capacity:    amounts(node.Status.Capacity),
		Allocatable: amounts(node.Status.Allocatable),
	}
	for _, c := range node.Status.Conditions {
		got.Conditions = append(got.Conditions, string(c.Type)+"="+string(c.Status)+" "+c.Reason)
	}
	for _, h := range node.Status.RuntimeHandlers {
		got.Handlers = append(got.Handlers, h.Name)
	}
	want := summary{
		Name:    "node-1",
		Runtime: "containerd://2.4.2",
		Kubelet: "v1.37.1",
		Labels: map[string]string{
			"kubernetes.io/hostname":  "node-1",
			"kubernetes.io/os":        "linux",
			"kubernetes.io/arch":      "amd64",
			"beta.kubernetes.io/os":   "linux",
			"beta.kubernetes.io/arch": "amd64",
			"zone":                    "a",
		},
		Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: "10.0.0.5"},
			{Type: v1.NodeHostName, Address: "node-1"},
		},
		Capacity: map[string]string{
			"cpu":               "4",
			"memory":            "16Gi",
			"pods":              "110",
			"ephemeral-storage": "100Gi",
			"hugepages-2Mi":     "1Gi",
			"hugepages-1Gi":     "0",
		},
		// Memory: 16Gi less 1Gi reserved, 100Mi of the eviction threshold, and 1Gi of huge pages.
		Allocatable: map[string]string{
			"cpu":               "3500m",
			"memory":            "14236Mi",
			"pods":              "110",
			"ephemeral-storage": "90Gi",
			"hugepages-2Mi":     "1Gi",
			"hugepages-1Gi":     "0",
		},
		Conditions: []string{
			"MemoryPressure=False KubeletHasSufficientMemory", "DiskPressure=False KubeletHasNoDiskPressure",
			"PIDPressure=False KubeletHasSufficientPID", "Ready=True KubeletReady",
		},
		Handlers: []string{"", "runc"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConfiguredAddressComesFirst(t *testing.T) {
	in := input(t)
	in.Settings.IPs = []net.IP{net.ParseIP("192.0.2.1")}
	if got := Build(in).Node.Status.Addresses[0].Address; got != "192.0.2.1" {
		t.Errorf("address = %s, want %q", got, "192.0.2.1")
	}
	in.Settings.IPs, in.Readings.IP = nil, nil
	if got := Build(in).Node.Status.Addresses; len(got) != 1 || got[0].Type != v1.NodeHostName {
		t.Errorf("without any address: %v", got)
	}
}

// TestAFamilyIsNoAddress: the detected addresses are reported, also before a cloud provider sets them.
func TestAFamilyIsNoAddress(t *testing.T) {
	in := input(t)
	in.Settings.IPs, in.Settings.ChoosesIP, in.Settings.ExternalCloud = nodeip.Given("::"), true, true
	node := Build(in).Node
	want := v1.NodeAddress{Type: v1.NodeInternalIP, Address: "10.0.0.5"}
	if got := node.Status.Addresses; got[0] != want || len(node.Annotations) > 0 {
		t.Errorf("addresses %v, annotations %v, want got[0] %v and none", got, node.Annotations, want)
	}
	in.Settings.ChoosesIP = false
	if got := Build(in).Node.Status.Addresses; len(got) != 1 || got[0].Type != v1.NodeHostName {
		t.Errorf("without a family: %v", got)
	}
}

// TestReady has for each case the state of the peers, the time since they were healthy, and the previous report.
func TestReady(t *testing.T) {
	well := Peer{State: PeerHealthy}
	away := Peer{State: PeerAway, Reasons: []string{"pleg does not answer: start it"}}
	starting := Peer{State: PeerStarting, Reasons: []string{"pleg has not looked yet"}}
	noRuntime := Peer{State: PeerUnhealthy, Reasons: []string{"the runtime does not answer"}, Runtime: &Runtime{}}
	noNetwork := Peer{State: PeerUnhealthy, Reasons: []string{"the network is not ready"}, Runtime: &Runtime{Ready: true}}
	stuck := Peer{State: PeerUnhealthy, Reasons: []string{"the loop has not turned"}, Runtime: &Runtime{Ready: true}}
	for name, test := range map[string]struct {
		pleg, syncloop Peer
		before         v1.ConditionStatus
		since          time.Duration
		want           v1.ConditionStatus
		message        string
	}{
		"all well, the first time":           {well, well, "", 0, v1.ConditionTrue, "kubelet is posting ready status"},
		"all well again":                     {well, well, v1.ConditionFalse, time.Hour, v1.ConditionTrue, "kubelet is posting ready status"},
		"away from the start":                {away, well, "", 0, v1.ConditionFalse, "start it"},
		"away for a moment":                  {away, well, v1.ConditionTrue, 39 * time.Second, v1.ConditionTrue, "tolerating temporarily: pleg does not answer"},
		"away for long":                      {away, well, v1.ConditionTrue, 40 * time.Second, v1.ConditionFalse, "pleg does not answer: start it"},
		"away, and the node was not ready":   {away, well, v1.ConditionFalse, time.Second, v1.ConditionFalse, "start it"},
		"begun anew":                         {starting, well, v1.ConditionTrue, 5 * time.Second, v1.ConditionTrue, "has not looked yet"},
		"runtime away for a moment":          {noRuntime, well, v1.ConditionTrue, 29 * time.Second, v1.ConditionTrue, "the runtime"},
		"runtime away for long":              {noRuntime, well, v1.ConditionTrue, 30 * time.Second, v1.ConditionFalse, "the runtime"},
		"network not ready":                  {noNetwork, well, v1.ConditionTrue, time.Second, v1.ConditionFalse, "the network"},
		"loop stuck":                         {well, stuck, v1.ConditionTrue, time.Second, v1.ConditionFalse, "the loop"},
		"one borne with, the other not":      {away, stuck, v1.ConditionTrue, time.Second, v1.ConditionFalse, "start it; the loop"},
		"both away, after a crash of us all": {away, away, v1.ConditionTrue, time.Second, v1.ConditionTrue, "tolerating"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t)
			if test.before != "" {
				in.Previous.Node = &v1.Node{
					Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: test.before}}},
				}
			}
			in.PLEG, in.SyncLoop = test.pleg, test.syncloop
			in.Now = start.Add(test.since)
			got := condition(t, Build(in), v1.NodeReady)
			if got.Status != test.want || !strings.Contains(got.Message, test.message) {
				t.Errorf("got %s %q, want %s with %q", got.Status, got.Message, test.want, test.message)
			}
			if reason := map[v1.ConditionStatus]string{v1.ConditionTrue: "KubeletReady", v1.ConditionFalse: "KubeletNotReady"}[got.Status]; got.Reason != reason {
				t.Errorf("reason = %s, want %s", got.Reason, reason)
			}
		})
	}
}

func TestANodeThatIsShuttingDownIsNotReady(t *testing.T) {
	in := input(t)
	in.ShuttingDown = true
	in.Previous.Node = &v1.Node{
		Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
	state := Build(in)
	if got := condition(
		t,
		state,
		v1.NodeReady,
	); got.Status != v1.ConditionFalse || got.Reason != "KubeletNotReady" || got.Message != "node is shutting down" ||
		!state.ShuttingDown {
		t.Errorf("got.Status = %s %s %q, want %s, %q, %q and state.ShuttingDown true",
			got.Status, got.Reason, got.Message, v1.ConditionFalse, "KubeletNotReady", "node is shutting down")
	}
	// Other faults are reported, too, and without tolerance.
	in.PLEG = Peer{State: PeerAway, Reasons: []string{"pleg does not answer"}}
	if got := condition(
		t,
		Build(in),
		v1.NodeReady,
	); got.Status != v1.ConditionFalse ||
		got.Message != "node is shutting down; pleg does not answer" {
		t.Errorf("got.Status = %s %q, want %s and %q",
			got.Status, got.Message, v1.ConditionFalse, "node is shutting down; pleg does not answer")
	}
}

// TestHugePagesAreNotAvailable: no working set has them, and nothing else can use their memory.
func TestHugePagesAreNotAvailable(t *testing.T) {
	for _, test := range []struct {
		aware     bool
		available int64
		want      v1.ConditionStatus
	}{
		{false, gibi + 50<<20, v1.ConditionFalse}, {true, gibi + 50<<20, v1.ConditionTrue},
		{true, gibi + 100<<20, v1.ConditionFalse}, {true, 200 << 20, v1.ConditionTrue},
	} {
		in := input(t)
		in.Settings.HugePageAware, in.Readings.MemoryAvailableBytes = test.aware, test.available
		if got := condition(t, Build(in), v1.NodeMemoryPressure); got.Status != test.want {
			t.Errorf("of %d bytes, huge pages counted %t: %s %q, want %s",
				test.available, test.aware, got.Status, got.Message, test.want)
		}
	}
}

// TestWhatSyncloopReads has values that only the runtime knows: without them nodestatus reports its own values of the
// disk.
func TestWhatSyncloopReads(t *testing.T) {
	in := input(t)
	if got := condition(
		t,
		Build(in),
		v1.NodeDiskPressure,
	); got.Status != v1.ConditionFalse ||
		!strings.Contains(got.Message, "imagefs.available") {
		t.Errorf("syncloop says nothing: %s %q", got.Status, got.Message)
	}
	in.SyncLoop.Readings = map[string]eviction.Reading{"imagefs.available": {Available: 14, Capacity: 100, At: start}}
	state := Build(in)
	if got := condition(t, state, v1.NodeDiskPressure); got.Status != v1.ConditionTrue {
		t.Errorf("syncloop says that too little is left: %s %q", got.Status, got.Message)
	}
	if diff := cmp.Diff(pressing("imagefs.available", 14, 15), state.Eviction.Pressing); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
}

// TestTransitionTimes checks for any history of health that a heartbeat is always now, and that a transition has the
// time of the last change of the condition's status.
func TestTransitionTimes(t *testing.T) {
	base := input(t)
	rapid.Check(t, func(t *rapid.T) {
		in := base
		changed := make(map[v1.NodeConditionType]time.Time)
		last := make(map[v1.NodeConditionType]v1.ConditionStatus)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			in.Now = in.Now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
			in.PLEG.State = PeerState(rapid.IntRange(int(PeerAway), int(PeerHealthy)).Draw(t, "pleg"))
			in.PLEG.Reasons = []string{"reason"}
			if in.PLEG.State == PeerHealthy {
				in.PLEG.LastGood = in.Now
			}
			in.Readings.MemoryAvailableBytes = rapid.SampledFrom([]int64{0, 1, gibi}).Draw(t, "memory")
			before := in.Previous.Node.DeepCopy()
			state := Build(in)
			if diff := cmp.Diff(before, in.Previous.Node); diff != "" {
				t.Fatalf("the previous Node was changed:\n%s", diff)
			}
			for _, c := range state.Node.Status.Conditions {
				if last[c.Type] != c.Status {
					last[c.Type], changed[c.Type] = c.Status, in.Now
				}
				if !c.LastHeartbeatTime.Time.Equal(in.Now) || !c.LastTransitionTime.Time.Equal(changed[c.Type]) {
					t.Fatalf(
						"%s: heartbeat %s and transition %s, want %s and %s",
						c.Type,
						c.LastHeartbeatTime,
						c.LastTransitionTime,
						in.Now,
						changed[c.Type],
					)
				}
			}
			if in.Previous.Node != nil && !state.Node.CreationTimestamp.Equal(&in.Previous.Node.CreationTimestamp) {
				t.Fatalf("the node was created again at %s", state.Node.CreationTimestamp)
			}
			in.Previous = state
		}
	})
}

func TestAllocatableIsNeverNegative(t *testing.T) {
	in := input(t)
	in.Settings.Reserved = v1.ResourceList{v1.ResourceMemory: resource.MustParse("100Gi")}
	memory := Build(in).Node.Status.Allocatable[v1.ResourceMemory]
	if memory.Sign() != 0 {
		t.Errorf("allocatable memory = %s, want 0", memory.String())
	}
}

func TestRuntimeIsRememberedWhilePlegIsAway(t *testing.T) {
	in := input(t)
	in.Previous = Build(in)
	in.PLEG = Peer{State: PeerAway, Reasons: []string{"away"}}
	node := Build(in).Node
	if node.Status.NodeInfo.ContainerRuntimeVersion != "containerd://2.4.2" || len(node.Status.RuntimeHandlers) != 2 {
		t.Errorf("runtime is forgotten: %+v", node.Status)
	}
}

func TestSettingsOf(t *testing.T) {
	cfg, err := nodeconfig.Parse(
		nodeconfig.NodeStatus,
		[]string{"--hostname-override", "n", "--node-ip", "10.1.1.1", "--node-labels", "a=b"},
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Kubelet.SystemReserved = map[string]string{"cpu": "100m"}
	cfg.Kubelet.KubeReserved = map[string]string{"cpu": "200m"}
	s, err := SettingsOf(cfg, "v1.37.1")
	if err != nil {
		t.Fatal(err)
	}
	cpu := s.Reserved[v1.ResourceCPU]
	if cpu.String() != "300m" || s.MaxPods != 110 || len(s.IPs) != 1 || s.IPs[0].String() != "10.1.1.1" ||
		s.Labels["a"] != "b" ||
		len(s.Thresholds) == 0 {
		t.Errorf("settings = %+v, want cpu %q, MaxPods 110, len(IPs) 1, IPs[0] %q, a %q and some Thresholds",
			s, "300m", "10.1.1.1", "b")
	}
}
