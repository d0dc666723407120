package userns

import (
	"errors"
	"fmt"
	"math"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

const (
	// owner is the user whose subordinate IDs are for pods: the kubelet's.
	owner = "kubelet"
	// tool is what tells the subordinate IDs of a user, wherever they are kept.
	tool = "getsubids"
)

// Machine is what Subordinate asks.
type Machine interface {
	// HasUser says whether the machine knows a user.
	HasUser(name string) (bool, error)
	// Run runs a program that is in the PATH and returns what it prints; exec.ErrNotFound when it is not there.
	Run(name string, args ...string) (string, error)
}

// Subordinate says which IDs of the host are for pods: those that getsubids tells of the user kubelet, or, when there
// is no such user or no getsubids, all but the first perPod. It fails when they are not the same for users and groups,
// or cannot be cut into parts of perPod, the first of which is the host's own.
func Subordinate(machine Machine, perPod uint32) (Range, error) {
	rest := Range{First: perPod, Length: math.MaxUint32 - perPod + 1}
	known, err := machine.HasUser(owner)
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: is there a user %s: %w", owner, err)
	}
	if !known {
		return rest, nil
	}
	users, err := machine.Run(tool, owner)
	if errors.Is(err, exec.ErrNotFound) {
		return rest, nil
	}
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: subordinate users of %s: %w", owner, err)
	}
	groups, err := machine.Run(tool, "-g", owner)
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: subordinate groups of %s: %w", owner, err)
	}
	if users != groups {
		return Range{}, fmt.Errorf("user namespaces: %s has other subordinate users than groups: make its lines in /etc/subuid and /etc/subgid the same", owner)
	}
	return parse(users, perPod)
}

// parse reads one line like "0: kubelet 65536 2147483648".
func parse(text string, perPod uint32) (Range, error) {
	fail := func(why string) (Range, error) {
		return Range{}, fmt.Errorf("user namespaces: %s of %s says %q, %s", tool, owner, strings.TrimSpace(text), why)
	}
	fields := strings.Fields(text)
	if strings.Count(strings.TrimSpace(text), "\n") > 0 || len(fields) != 4 {
		return fail("which must be one line with one range")
	}
	first, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return fail("of which the first ID is no number")
	}
	length, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return fail("of which the length is no number")
	}
	switch part := uint64(perPod); {
	case first%part != 0 || first < part:
		return fail(fmt.Sprintf("of which the first ID must be a multiple of %d", perPod))
	case length%part != 0 || length == 0:
		return fail(fmt.Sprintf("of which the length must be a multiple of %d", perPod))
	case first+length > math.MaxUint32+1:
		return fail("which ends beyond the last ID that there is")
	}
	return Range{First: uint32(first), Length: uint32(length)}, nil
}

// Local is this machine.
type Local struct{}

// HasUser implements Machine.
func (Local) HasUser(name string) (bool, error) {
	_, err := user.Lookup(name)
	if errors.As(err, new(user.UnknownUserError)) {
		return false, nil
	}
	return err == nil, err
}

// Run implements Machine.
func (Local) Run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(ended.Stderr)))
	}
	return string(out), err
}
