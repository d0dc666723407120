package machine

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// files are the files of a test machine, by their paths below its root.
type files map[string]string

// and returns a copy with some files replaced; absent removes a file.
func (f files) and(more files) files {
	out := maps.Clone(f)
	for path, content := range more {
		if content == absent {
			delete(out, path)
			continue
		}
		out[path] = content
	}
	return out
}

const absent = "\x00"

// in writes the files below a root and returns the machine; system calls return the values of the real machine. The pid
// of this process is 7 there.
func (f files) in(t *testing.T) Machine {
	t.Helper()
	m := This()
	m.Root, m.EUID = t.TempDir(), 0
	for path, content := range f {
		full := m.path(path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(m.path("proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("7", m.path("proc/self")); err != nil {
		t.Fatal(err)
	}
	return m
}

// expect compares the level of a finding, and checks that its detail and its fix contain words. Every finding that is
// not ok has a fix.
func expect(t *testing.T, f Finding, level Level, words ...string) {
	t.Helper()
	if f.Level != level {
		t.Errorf("%s is %s (%s), want %s", f.Check, f.Level, f.Detail, level)
	}
	if (f.Fix == "") != (level == OK) {
		t.Errorf("%s is %s and its fix is %q", f.Check, f.Level, f.Fix)
	}
	if f.Check == "" || f.Detail == "" {
		t.Errorf("a finding without a name or a detail: %+v", f)
	}
	for _, word := range words {
		if !strings.Contains(f.Detail+"\n"+f.Fix, word) {
			t.Errorf("%s lacks %q: %s: %s", f.Check, word, f.Detail, f.Fix)
		}
	}
}

// fileCase is a case of a check that only reads files.
type fileCase struct {
	name  string
	files files
	level Level
	words []string
}

func run(t *testing.T, check func(Machine) Finding, cases []fileCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { expect(t, check(c.files.in(t)), c.level, c.words...) })
	}
}

func TestKernel(t *testing.T) {
	release := func(s string) files { return files{"proc/sys/kernel/osrelease": s + "\n"} }
	run(t, Machine.Kernel, []fileCase{
		{"new", release("6.18.44-fc-v669"), OK, []string{"6.18.44"}},
		{"the first whole one", release("5.10.0-8-amd64"), OK, nil},
		{"a little old", release("5.4.0-200-generic"), Warning, []string{"5.10", "quartet up and down"}},
		{"too old", release("4.19.0"), Fault, []string{"5.4"}},
		{"not a version", release("unknown"), Warning, []string{"cannot be determined"}},
		{"no proc", files{}, Warning, []string{"cannot be determined"}},
	})
}

func TestUser(t *testing.T) {
	expect(t, Machine{EUID: 0}.User(), OK)
	expect(t, Machine{EUID: 1000}.User(), Fault, "uid 1000", "sudo")
}

func TestCgroups(t *testing.T) {
	v1 := files{}
	for _, c := range []string{"cpu", "memory", "pids", "cpuset", "cpuacct", "blkio", "devices", "freezer"} {
		v1["sys/fs/cgroup/"+c+"/tasks"] = ""
	}
	v2 := func(controllers string) files { return files{"sys/fs/cgroup/cgroup.controllers": controllers + "\n"} }
	run(t, Machine.Cgroups, []fileCase{
		{"v2", v2("cpuset cpu io memory hugetlb pids"), OK, []string{"version 2"}},
		{"v2 without memory", v2("cpuset cpu io pids"), Fault, []string{"version 2", "memory", "subtree_control"}},
		{"v2 without cpuset", v2("cpu io memory pids"), Warning, []string{"cpuset"}},
		{"v1", v1, OK, []string{"version 1"}},
		{
			"v1 without pids",
			v1.and(files{"sys/fs/cgroup/pids/tasks": absent}),
			Fault,
			[]string{"mkdir -p /sys/fs/cgroup/pids && mount -t cgroup -o pids none /sys/fs/cgroup/pids"},
		},
		{"v1 without freezer", v1.and(files{"sys/fs/cgroup/freezer/tasks": absent}), Warning, []string{"freezer"}},
		{"nothing mounted", files{"sys/fs/cgroup/README": ""}, Fault, []string{"mount -t cgroup2"}},
	})
}

func TestCapabilities(t *testing.T) {
	effective := func(set string) files { return files{"proc/7/status": "Name:\tx\nCapEff:\t" + set + "\n"} }
	run(t, Machine.Capabilities, []fileCase{
		{"all", effective("000001ffffffffff"), OK, nil},
		{
			"root of a container",
			effective("00000000a80425fb"),
			Fault,
			[]string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN", "--privileged"},
		},
		{"none", effective("0000000000000000"), Fault, []string{"CAP_CHOWN"}},
		{"not said", files{"proc/7/comm": "x\n"}, Warning, []string{"cannot be determined"}},
	})
	run(t, Machine.OOMScores, []fileCase{
		{"held", effective("000001ffffffffff"), OK, nil},
		{"not held", effective("000001fffeffffff"), Warning, []string{"OOM"}},
	})
}

func TestPacketFilter(t *testing.T) {
	having := func(have ...string) Machine {
		return Machine{LookPath: func(name string) (string, error) {
			for _, h := range have {
				if h == name {
					return "/sbin/" + name, nil
				}
			}
			return "", errors.New("not found")
		}}
	}
	expect(t, having("nft", "iptables").Masquerading(), OK, "iptables")
	expect(t, having("nft").Masquerading(), OK, "nftables")
	expect(t, having().Masquerading(), Warning, "install iptables")
}

func TestForwardingAndBridges(t *testing.T) {
	const forward, filter = "proc/sys/net/ipv4/ip_forward", "proc/sys/net/bridge/bridge-nf-call-iptables"
	run(t, Machine.Forwarding, []fileCase{
		{"on", files{forward: "1\n"}, OK, nil},
		{"off", files{forward: "0\n"}, Warning, []string{"sysctl -w net.ipv4.ip_forward=1", "net.ipv4.ip_forward = 1 in"}},
	})
	run(t, Machine.BridgeFilter, []fileCase{
		{"on", files{filter: "1\n"}, OK, nil},
		{"off", files{filter: "0\n"}, Warning, []string{"sysctl -w net.bridge.bridge-nf-call-iptables=1"}},
		{"not loaded", files{}, Warning, []string{"modprobe br_netfilter"}},
		{"nonsense", files{filter: "x"}, Warning, []string{"cannot be determined"}},
	})
	run(t, Machine.Overlay, []fileCase{
		{"there", files{"proc/filesystems": "nodev\tproc\nnodev\toverlay\n\text4\n"}, OK, nil},
		{"not loaded", files{"proc/filesystems": "nodev\tproc\n\text4\n"}, Warning, []string{"modprobe overlay"}},
	})
}

func TestThreads(t *testing.T) {
	well := files{
		"proc/sys/kernel/pid_max":     "4194304\n",
		"proc/sys/kernel/threads-max": "192730\n",
		"proc/loadavg":                "0.1 0.2 0.3 2/400 1234\n",
	}
	run(t, Machine.Threads, []fileCase{
		{"enough", well, OK, []string{"400 of 192730", "threads-max"}},
		{
			"pid_max is low",
			well.and(files{"proc/sys/kernel/pid_max": "4096"}),
			Warning,
			[]string{"sysctl -w kernel.pid_max=4194304"},
		},
		{
			"nearly all in use",
			well.and(files{"proc/loadavg": "0.1 0.2 0.3 2/190000 1234"}),
			Warning,
			[]string{"sysctl -w kernel.threads-max=760000"},
		},
		{"loadavg is short", well.and(files{"proc/loadavg": "0.1"}), Warning, []string{"cannot be determined"}},
	})
}

func TestSwap(t *testing.T) {
	const head = "Filename\tType\tSize\tUsed\tPriority\n"
	on := files{"proc/swaps": head + "/dev/sda2 partition 100 0 -2\n"}
	fails := func(m Machine) Finding { return m.Swap(true) }
	run(t, fails, []fileCase{
		{"off", files{"proc/swaps": head}, OK, nil},
		{"on", on, Fault, []string{"/dev/sda2", "swapoff -a"}},
	})
	run(
		t,
		func(m Machine) Finding { return m.Swap(false) },
		[]fileCase{{"on and allowed", on, OK, []string{"failSwapOn is false"}}},
	)
}

func TestOpenFiles(t *testing.T) {
	limited := func(n uint64, err error) Machine {
		return Machine{OpenFilesLimit: func() (uint64, error) { return n, err }}
	}
	expect(t, limited(1<<20, nil).OpenFiles(), OK, "1048576")
	expect(t, limited(1<<64-1, nil).OpenFiles(), OK, "no limit")
	expect(t, limited(4096, nil).OpenFiles(), Warning, "LimitNOFILE")
	expect(t, limited(0, errors.New("no")).OpenFiles(), Warning, "cannot be determined")
}

func TestInotify(t *testing.T) {
	limits := files{"proc/sys/fs/inotify/max_user_instances": "128\n", "proc/sys/fs/inotify/max_user_watches": "65536\n"}
	using := func(instances, watches int64) func(Machine) Finding {
		return func(m Machine) Finding {
			return m.Inotify(
				[]Process{{UID: 0, Inotify: instances, Watches: watches}, {UID: 1000, Inotify: 1000, Watches: 1 << 20}},
			)
		}
	}
	run(t, using(10, 100), []fileCase{
		{"enough", limits, OK, []string{"10 of 128", "100 of 65536"}},
		{
			"set low",
			limits.and(files{"proc/sys/fs/inotify/max_user_instances": "64"}),
			Warning,
			[]string{"max_user_instances=512"},
		},
		{"no such limit", files{}, Warning, []string{"cannot be determined"}},
	})
	run(
		t,
		using(120, 100),
		[]fileCase{{"instances used up", limits, Warning, []string{"120 of 128", "max_user_instances=512"}}},
	)
	run(t, using(10, 60000), []fileCase{{"watches used up", limits, Warning, []string{"max_user_watches=524288"}}})
}

func TestClock(t *testing.T) {
	now := time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC)
	booted := files{"proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\nbtime 1903860000\nprocesses 5\n"} // 2030-05-01T10:00:00Z
	const written = "state/nodestatus.json"
	clock := func(state int, status int32, age time.Duration) func(Machine) Finding {
		return func(m Machine) Finding {
			m.Now = func() time.Time { return now }
			m.Adjtimex = func(timex *unix.Timex) (int, error) {
				timex.Status = status
				return state, nil
			}
			if err := os.Chtimes(m.path(written), now.Add(-age), now.Add(-age)); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
			return m.Clock("state")
		}
	}
	run(t, clock(0, 0, time.Hour), []fileCase{
		{"kept", booted, OK, []string{"2030-05-01T12:00:00Z"}},
		{"files of the past", booted.and(files{written: "{}"}), OK, nil},
		{"never set", files{"proc/stat": "btime 3600\n"}, Warning, []string{"1970-01-01T01:00:00Z", "never set"}},
		{"no boot time", files{"proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\n"}, Warning, []string{"cannot be determined"}},
	})
	run(
		t,
		clock(0, 0, -time.Hour),
		[]fileCase{{"a file of the future", booted.and(files{written: "{}"}), Warning, []string{"set back", written}}},
	)
	run(t, clock(timeError, 0, 0), []fileCase{{"an error of the clock", booted, Warning, []string{"timedatectl"}}})
	run(t, clock(0, staUnsync, 0), []fileCase{{"not kept", booted, Warning, []string{"STA_UNSYNC", "timedatectl"}}})
}

func TestFindingsNameEveryFaultAtOnce(t *testing.T) {
	findings := Findings{
		Ok("a", "fine"),
		Ok("b", "").With(Warning, "meh", "do b"),
		Ok("c", "").With(Fault, "bad", "do c"),
		Ok("d", "").With(Fault, "worse", "do d"),
	}
	err := findings.Err()
	if err == nil || err.Error() != "c: bad: do c\nd: worse: do d" {
		t.Errorf("Err() error = %v, want %q", err, "c: bad: do c\nd: worse: do d")
	}
	if findings[:2].Err() != nil {
		t.Error("a warning is an error")
	}
	if findings.Count(Fault) != 2 || findings.Count(Warning) != 1 || findings.Count(OK) != 1 {
		t.Error("the counts are wrong")
	}
}
