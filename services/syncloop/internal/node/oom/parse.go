package oom

import (
	"strconv"
	"strings"
)

// Kill is a process that the kernel has killed since there was no memory left.
type Kill struct {
	PID int
	// Process is the name of its command.
	Process string
	// System is true when the machine had run out of memory, or the part of it that the process may use; false when it was a cgroup that
	// had reached its limit.
	System bool
	// Cgroup is the cgroup of memory that the process was in, and Limit the one that had reached its limit; empty when the kernel has
	// not said it.
	Cgroup, Limit string
}

// These begin what the kernel says of a kill: by the machine's want of memory, and by that of a cgroup.
const (
	ofSystem = "Out of memory"
	ofCgroup = "Memory cgroup out of memory"
)

// scope is whose want of memory it was.
type scope int

const (
	scopeUnknown scope = iota
	scopeSystem
	scopeCgroup
)

// Parser finds kills in the lines that the kernel logs. Up to Linux 5.1 it takes several to say one, and later ones say more than the
// last of them has:
//
//	oom-kill:constraint=…,oom_memcg=LIMIT,task_memcg=CGROUP,task=NAME,pid=PID,uid=UID    from 5.0 on; `global_oom` for LIMIT
//	Task in CGROUP killed as a result of limit of LIMIT                                  before
//	Out of memory: Kill process PID (NAME) score 900 or sacrifice child                  up to 5.1; one of its children may go instead
//	Killed process PID (NAME) total-vm:…                                                 the same
//	Out of memory: Killed process PID (NAME) total-vm:…                                  from 5.2 on
//
// The kernel says these of one kill after another, with lines about other things between. Make it with new(Parser).
type Parser struct {
	// announced is whose want of memory was said last, for a kill that does not say it.
	announced scope
	// of is the process whose cgroups were said last; 0 for the next one that is killed, whichever it is.
	of            int
	cgroup, limit string
}

// Line takes the next line. It returns a kill, and true, for a line that completes one.
func (p *Parser) Line(line string) (Kill, bool) {
	if fields, ok := strings.CutPrefix(line, "oom-kill:"); ok {
		p.of, p.cgroup, p.limit = cgroupsOf(fields)
		return Kill{}, false
	}
	if task, ok := strings.CutPrefix(line, "Task in "); ok {
		if cgroup, limit, ok := strings.Cut(task, " killed as a result of limit of "); ok {
			p.of, p.cgroup, p.limit = 0, cgroup, limit
		}
		return Kill{}, false
	}
	whose, what := scopeOf(line)
	if strings.HasPrefix(what, "Kill process ") {
		p.announced = whose
		return Kill{}, false
	}
	process, ok := strings.CutPrefix(what, "Killed process ")
	if !ok {
		return Kill{}, false
	}
	if whose == scopeUnknown {
		whose = p.announced // also of a whole group of processes, which are killed one after another
	}
	pid, name, ok := victim(process)
	if !ok || whose == scopeUnknown {
		return Kill{}, false
	}
	kill := Kill{PID: pid, Process: name, System: whose == scopeSystem}
	if p.of == pid || p.of == 0 {
		kill.Cgroup, kill.Limit = p.cgroup, p.limit
		p.of, p.cgroup, p.limit = 0, "", ""
	}
	return kill, true
}

// scopeOf takes from a line whose want of memory it begins with.
func scopeOf(line string) (scope, string) {
	if what, ok := strings.CutPrefix(line, ofCgroup+": "); ok {
		return scopeCgroup, what
	}
	if strings.HasPrefix(line, ofSystem) {
		// With the sysctl vm.oom_kill_allocating_task the name of that stands before the colon, in brackets.
		if head, what, ok := strings.Cut(line, ": "); ok && (head == ofSystem || strings.HasSuffix(head, ")")) {
			return scopeSystem, what
		}
	}
	return scopeUnknown, line
}

// victim reads "PID (NAME) total-vm:…". A name may have brackets in it.
func victim(text string) (pid int, name string, ok bool) {
	number, rest, ok := strings.Cut(text, " (")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil || pid <= 0 {
		return 0, "", false
	}
	end := -1
	for _, after := range []string{") total-vm:", "), UID ", ")"} { // the second is that of Red Hat's kernels
		if end = strings.LastIndex(rest, after); end >= 0 {
			break
		}
	}
	if end <= 0 {
		return 0, "", false
	}
	return pid, rest[:end], true
}

// cgroupsOf reads what follows "oom-kill:"; 0 is returned when it cannot be read, with no cgroups.
func cgroupsOf(fields string) (pid int, cgroup, limit string) {
	head, number, ok := cutLast(fields, ",pid=")
	number, _, _ = strings.Cut(number, ",")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil || pid <= 0 {
		return 0, "", ""
	}
	head, _, _ = cutLast(head, ",task=")
	head, cgroup, _ = strings.Cut(head, ",task_memcg=")
	_, limit, _ = strings.Cut(head, ",oom_memcg=")
	return pid, cgroup, limit
}

// cutLast is strings.Cut at the last separator: names of commands and cgroups may have one in them.
func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
