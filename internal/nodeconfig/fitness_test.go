package nodeconfig

import (
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// unreadable is a machine whose list of swap devices cannot be read.
type unreadable struct{ fs.FS }

func (u unreadable) Open(name string) (fs.File, error) {
	if name == "proc/swaps" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return u.FS.Open(name)
}

func TestAMachineThatTheConfigurationDoesNotPermitIsRefused(t *testing.T) {
	const head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	controllers := file("cpu memory\n")
	v1 := fstest.MapFS{"proc/swaps": file(head)}
	v2 := fstest.MapFS{"proc/swaps": file(head), "sys/fs/cgroup/cgroup.controllers": controllers}
	swapping := fstest.MapFS{
		"proc/swaps":                       file(head + "/dev/sda2 partition 8388604 0 -2\n/swap.img file 1024 0 -3\n"),
		"sys/fs/cgroup/cgroup.controllers": controllers,
	}
	for _, test := range []struct {
		name    string
		machine fs.FS
		fields  string
		want    []string
	}{
		{"nothing", fstest.MapFS{}, "", nil},
		{"cgroup v1", v1, "", nil},
		{"cgroup v2", v2, "failCgroupV1: true\nmemorySwap: {swapBehavior: LimitedSwap}\nsingleProcessOOMKill: false", nil},
		{"swap", swapping, "", []string{"failSwapOn: running with swap on is not supported, and /dev/sda2, /swap.img is on"}},
		{"swap, explicitly", swapping, "failSwapOn: true", []string{"failSwapOn: running with swap on"}},
		{"swap that is permitted", swapping, "failSwapOn: false", nil},
		{"limited swap", swapping, "failSwapOn: false\nmemorySwap: {swapBehavior: LimitedSwap}", nil},
		{"a table that cannot be read", unreadable{v2}, "", []string{"failSwapOn: whether swap is on is not known"}},
		{"a table that need not be read", unreadable{v2}, "failSwapOn: false", nil},
		{"cgroup v1 that is not permitted", v1, "failCgroupV1: true", []string{"failCgroupV1: this machine has cgroup v1"}},
		{"cgroup v1 that is permitted", v1, "failCgroupV1: false\nsingleProcessOOMKill: true", nil},
		{"what needs cgroup v2", v1, "singleProcessOOMKill: false", []string{"singleProcessOOMKill: false needs cgroup v2"}},
		{"limited swap with cgroup v1, where nothing swaps", v1, "memorySwap: {swapBehavior: LimitedSwap}", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			decoded, problems := Decode(
				"/etc/node.yaml",
				[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+test.fields),
			)
			if len(problems) > 0 {
				t.Fatalf("problems %v, want none", problems)
			}
			if unsupported := decoded.unsupported(SyncLoop); len(unsupported) > 0 {
				t.Errorf("%v are named as not acted on", unsupported)
			}
			err := Config{File: "/etc/node.yaml", Kubelet: decoded.Kubelet}.FitMachine(test.machine)
			var all Errors
			if errors.As(err, &all); len(all) != len(test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(all[i].Error(), "/etc/node.yaml: "+want) {
					t.Errorf("got %q, want it to begin with %q", all[i], want)
				}
			}
		})
	}
}

func TestAMachineIsRefusedByTheDefaults(t *testing.T) {
	var kubelet kubeletconfigv1beta1.KubeletConfiguration
	setDefaults(&kubelet)
	err := Config{
		Kubelet: kubelet,
	}.FitMachine(fstest.MapFS{"proc/swaps": {Data: []byte("Filename\n/dev/vda3 partition\n")}})
	if err == nil || !strings.Contains(err.Error(), "the defaults: failSwapOn: ") {
		t.Errorf("FitMachine() error = %v, want an error with %q", err, "the defaults: failSwapOn: ")
	}
}

func TestKernelDefaultsAreProtected(t *testing.T) {
	good := fstest.MapFS{}
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		good["proc/sys/"+name] = &fstest.MapFile{Data: []byte(value + "\n")}
	}
	cfg := Config{File: "f", Kubelet: kubeletconfigv1beta1.KubeletConfiguration{ProtectKernelDefaults: true}}
	if err := cfg.FitMachine(good); err != nil {
		t.Errorf("a machine with these settings: %v", err)
	}
	bad := maps.Clone(good)
	bad["proc/sys/vm/overcommit_memory"] = &fstest.MapFile{Data: []byte("0\n")}
	delete(bad, "proc/sys/kernel/keys/root_maxkeys")
	var all Errors
	if err := cfg.FitMachine(bad); !errors.As(err, &all) || len(all) != 2 ||
		!strings.HasPrefix(all[0].Error(), "f: protectKernelDefaults: vm.overcommit_memory is 0, and should be 1: set it") ||
		!strings.HasPrefix(all[1].Error(), "f: protectKernelDefaults: kernel.keys.root_maxkeys cannot be read") {
		t.Errorf("FitMachine() error = %v, want a %T, len(all) 2, all[0].Error beginning with %q and all[1].Error beginning with %q",
			err, all, "f: protectKernelDefaults: vm.overcommit_memory is 0, and should be 1: set it",
			"f: protectKernelDefaults: kernel.keys.root_maxkeys cannot be read")
	}
	cfg.Kubelet.ProtectKernelDefaults = false
	if err := cfg.FitMachine(bad); err != nil {
		t.Errorf("settings that are not protected: %v", err)
	}
}
