package oom

import (
	"strconv"
	"strings"
)

// Kill is a process that the kernel killed because memory ran out.
type Kill struct {
	PID int
	// Process is the name of its command.
	Process string
	// System is true if the machine, or the part of its memory that the process may use, ran out of memory. It is false if
	// a cgroup reached its limit.
	System bool
	// Cgroup is the memory cgroup of the process, and Limit the cgroup that reached its limit. Both are empty if the
	// kernel did not log them.
	Cgroup, Limit string
}

// The beginnings of the kernel's messages about a kill: because of the machine's memory and because of a cgroup's
// limit.
const (
	systemPrefix = "Out of memory"
	cgroupPrefix = "Memory cgroup out of memory"
)

// scope is the scope of the memory that ran out.
type scope int

const (
	scopeUnknown scope = iota
	scopeSystem
	scopeCgroup
)

// Parser finds kills in the lines of the kernel's log. Up to Linux 5.1 a kill takes several lines, and the last does
// not repeat the others. Later versions log more than their last line has:
//
//	oom-kill:constraint=…,oom_memcg=LIMIT,task_memcg=CGROUP,task=NAME,pid=PID,uid=UID  from 5.0 on, or `global_oom`
//	Task in CGROUP killed as a result of limit of LIMIT                                before
//	Out of memory: Kill process PID (NAME) score 900 or sacrifice child                up to 5.1; a child may die instead
//	Killed process PID (NAME) total-vm:…                                               the same
//	Out of memory: Killed process PID (NAME) total-vm:…                                from 5.2 on
//	Tasks in CGROUP are going to be killed due to memory.oom.group set                 then each, the first one again
//
// The lines of two kills do not mix, but lines about other things may stand between them. Create it with new(Parser).
type Parser struct {
	// announced is the scope that was logged last, for a kill whose line has none.
	announced scope
	// pid is the PID whose cgroups were logged last. 0 stands for the next killed process, whatever its PID is.
	pid           int
	cgroup, limit string
	// last is the last kill, and group the cgroup that is killed with its process; empty if it is alone.
	last  Kill
	group string
}

// Line parses the next line. It returns a kill and true if the line completes one.
func (p *Parser) Line(line string) (Kill, bool) {
	if fields, ok := strings.CutPrefix(line, "oom-kill:"); ok {
		p.pid, p.cgroup, p.limit = cgroupsOf(fields)
		p.group = ""
		return Kill{}, false
	}
	if group, ok := strings.CutPrefix(line, "Tasks in "); ok {
		if group, ok := strings.CutSuffix(group, " are going to be killed due to memory.oom.group set"); ok {
			p.group = group
		}
		return Kill{}, false
	}
	if task, ok := strings.CutPrefix(line, "Task in "); ok {
		if cgroup, limit, ok := strings.Cut(task, " killed as a result of limit of "); ok {
			p.pid, p.cgroup, p.limit = 0, cgroup, limit
		}
		return Kill{}, false
	}
	scope, rest := scopeOf(line)
	if strings.HasPrefix(rest, "Kill process ") {
		p.announced = scope
		return Kill{}, false
	}
	process, ok := strings.CutPrefix(rest, "Killed process ")
	if !ok {
		return Kill{}, false
	}
	if scope == scopeUnknown {
		scope = p.announced // This scope also applies to a group of processes that are killed one after another.
	}
	pid, name, ok := victim(process)
	if !ok || scope == scopeUnknown {
		return Kill{}, false
	}
	return p.complete(Kill{PID: pid, Process: name, System: scope == scopeSystem})
}

// complete adds the cgroups to a kill. It returns false for one that is logged again.
func (p *Parser) complete(kill Kill) (Kill, bool) {
	switch {
	case p.group != "" && kill.PID == p.last.PID:
		return Kill{}, false
	case p.group != "":
		kill.Cgroup, kill.Limit = p.group, p.last.Limit
		return kill, true // p.last stays the process with which the group is killed
	case p.pid == kill.PID || p.pid == 0:
		kill.Cgroup, kill.Limit = p.cgroup, p.limit
		p.pid, p.cgroup, p.limit = 0, "", ""
	}
	p.last = kill
	return kill, true
}

// scopeOf splits a line into its scope and the rest.
func scopeOf(line string) (scope, string) {
	if rest, ok := strings.CutPrefix(line, cgroupPrefix+": "); ok {
		return scopeCgroup, rest
	}
	if strings.HasPrefix(line, systemPrefix) {
		// With the sysctl vm.oom_kill_allocating_task, its name stands before the colon, in brackets.
		if head, rest, ok := strings.Cut(line, ": "); ok && (head == systemPrefix || strings.HasSuffix(head, ")")) {
			return scopeSystem, rest
		}
	}
	return scopeUnknown, line
}

// victim parses "PID (NAME) total-vm:…". A name may contain brackets.
func victim(text string) (pid int, name string, ok bool) {
	number, rest, ok := strings.Cut(text, " (")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil || pid <= 0 {
		return 0, "", false
	}
	end := -1
	for _, after := range []string{") total-vm:", "), UID ", ")"} { // The second is from Red Hat's kernels.
		if end = strings.LastIndex(rest, after); end >= 0 {
			break
		}
	}
	if end <= 0 {
		return 0, "", false
	}
	return pid, rest[:end], true
}

// cgroupsOf parses the text after "oom-kill:". It returns 0 and no cgroups if the text is malformed.
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

// cutLast is strings.Cut at the last separator, because names of commands and cgroups may contain the separator.
func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
