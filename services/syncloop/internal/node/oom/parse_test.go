package oom_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
)

// kills parses lines and returns the kills.
func kills(lines string) []oom.Kill {
	parser := new(oom.Parser)
	var found []oom.Kill
	for line := range strings.Lines(lines) {
		if kill, ok := parser.Line(strings.TrimSuffix(line, "\n")); ok {
			found = append(found, kill)
		}
	}
	return found
}

// TestKillsAreFoundInTheLogsOfKernels parses real logs of kernel versions, shortened by the tables of tasks.
func TestKillsAreFoundInTheLogsOfKernels(t *testing.T) {
	const pod = "/kubepods/burstable/pod78090c7a1769265bc09a811f2cdf4439"
	for name, test := range map[string]struct {
		log  string
		want []oom.Kill
	}{
		"6.18, the limit of a pod": {
			`hello invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=999
CPU: 0 UID: 0 PID: 10205 Comm: hello Not tainted 6.18.44 #1 PREEMPT(none)
memory: usage 49152kB, limit 49152kB, failcnt 137
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
[  10205]     0 10205   316268    13068    11840     1228         0   196608        0           999 hello
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=3bdacb5948a1,mems_allowed=0,oom_memcg=` + pod + `,task_memcg=` + pod + `/3bdacb5948a1,task=hello,pid=10205,uid=0
Memory cgroup out of memory: Killed process 10205 (hello) total-vm:1265072kB, anon-rss:47360kB, file-rss:4912kB, shmem-rss:0kB, UID:0 pgtables:192kB oom_score_adj:999
`, []oom.Kill{{PID: 10205, Process: "hello", Cgroup: pod + "/3bdacb5948a1", Limit: pod}},
		},
		"6.1, a whole cgroup with memory.oom.group": {
			`oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/app,task_memcg=/app/a,task=worker,pid=21,uid=1000
Memory cgroup out of memory: Killed process 21 (worker) total-vm:10kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:4kB oom_score_adj:0
Tasks in /app/a are going to be killed due to memory.oom.group set
Memory cgroup out of memory: Killed process 20 (sh) total-vm:10kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:4kB oom_score_adj:0
Memory cgroup out of memory: Killed process 21 (worker) total-vm:10kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:4kB oom_score_adj:0
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/b,task_memcg=/b,task=worker,pid=21,uid=1000
Memory cgroup out of memory: Killed process 21 (worker) total-vm:10kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:4kB oom_score_adj:0
`, []oom.Kill{
				{PID: 21, Process: "worker", Cgroup: "/app/a", Limit: "/app"}, {PID: 20, Process: "sh", Cgroup: "/app/a", Limit: "/app"},
				{PID: 21, Process: "worker", Cgroup: "/b", Limit: "/b"},
			},
		},
		"5.15, the machine": {
			`stress-ng-vm invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=1000
oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice/user-1000.slice/session-3.scope,task=stress-ng-vm,pid=2384,uid=1000
Out of memory: Killed process 2384 (stress-ng-vm) total-vm:3980720kB, anon-rss:3460720kB, file-rss:964kB, shmem-rss:48kB, UID:1000 pgtables:6952kB oom_score_adj:1000
oom_reaper: reaped process 2384 (stress-ng-vm), now anon-rss:0kB, file-rss:0kB, shmem-rss:48kB
`, []oom.Kill{{PID: 2384, Process: "stress-ng-vm", System: true, Cgroup: "/user.slice/user-1000.slice/session-3.scope"}},
		},
		"5.15, a NUMA node, and a second kill whose details were rate-limited": {
			`oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=db,mems_allowed=1,global_oom,task_memcg=/db,task=mysqld,pid=7,uid=27
Out of memory: Killed process 7 (mysqld) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:27 pgtables:6952kB oom_score_adj:0
Out of memory: Killed process 8 (mysqld) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:27 pgtables:6952kB oom_score_adj:0
`, []oom.Kill{{PID: 7, Process: "mysqld", System: true, Cgroup: "/db"}, {PID: 8, Process: "mysqld", System: true}},
		},
		"5.4, vm.oom_kill_allocating_task": {
			`Out of memory (oom_kill_allocating_task): Killed process 99 (a (b) c) total-vm:3kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0
`, []oom.Kill{{PID: 99, Process: "a (b) c", System: true}},
		},
		"5.0, the machine": {
			`oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=java,pid=1234,uid=0
Out of memory: Kill process 1234 (java) score 912 or sacrifice child
Killed process 1240 (sh) total-vm:4300kB, anon-rss:88kB, file-rss:0kB, shmem-rss:0kB
`, []oom.Kill{{PID: 1240, Process: "sh", System: true}},
		},
		"4.15, a container, then the machine": {
			`badsysprogram invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), nodemask=(null), order=0, oom_score_adj=0
Task in /docker/9d5c/inner killed as a result of limit of /docker/9d5c
memory: usage 262144kB, limit 262144kB, failcnt 17
Memory cgroup out of memory: Kill process 13536 (badsysprogram) score 1991 or sacrifice child
Killed process 13536 (badsysprogram) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB, shmem-rss:0kB
Out of memory: Kill process 13537 (java) score 700 or sacrifice child
Killed process 13537 (java) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB, shmem-rss:0kB
`, []oom.Kill{
				{PID: 13536, Process: "badsysprogram", Cgroup: "/docker/9d5c/inner", Limit: "/docker/9d5c"},
				{PID: 13537, Process: "java", System: true},
			},
		},
		"3.10 of Red Hat": {
			`Out of memory: Kill process 4512 (httpd) score 51 or sacrifice child
Killed process 4512 (httpd), UID 48, total-vm:516544kB, anon-rss:95612kB, file-rss:0kB, shmem-rss:0kB
`, []oom.Kill{{PID: 4512, Process: "httpd", System: true}},
		},
		"none": {
			`Killed process 5 (whose) total-vm:1kB, anon-rss:1kB, file-rss:0kB
Out of memory and no killable processes...
Out of memory: OOM victim 12 (sh) is already exiting. Skip killing the task
Out of memory: [12] segfault: Killed process 5 (whose) total-vm:1kB
Memory cgroup out of memory: Killed process 0 (idle) total-vm:1kB
Memory cgroup out of memory: Killed process 5 total-vm:1kB
oom-kill:constraint=
oom-kill:pid=x
`, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, kills(test.log)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// FuzzLine checks that no line makes the parser panic, and that each kill has a PID and a name from the log.
func FuzzLine(f *testing.F) {
	f.Add("oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a/b,task=x,pid=1,uid=0\nMemory cgroup out of memory: Killed process 1 (x) total-vm:1kB\n")
	f.Add("Task in /a killed as a result of limit of /b\nOut of memory: Kill process 2 (y) score 1\nKilled process 2 (y) total-vm:1kB\n")
	f.Fuzz(func(t *testing.T, log string) {
		for _, kill := range kills(log) {
			if kill.PID <= 0 || kill.Process == "" || !strings.Contains(log, "("+kill.Process+")") {
				t.Errorf("%q has the kill %+v", log, kill)
			}
			if !kill.System && !strings.Contains(log, "Memory cgroup out of memory: ") {
				t.Errorf("%q has the kill of a cgroup %+v", log, kill)
			}
		}
	})
}
