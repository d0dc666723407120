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
	// owner is the user whose subordinate IDs are for pods. It is the kubelet's.
	owner = "kubelet"
	// tool is the program that prints the subordinate IDs of a user, wherever they are configured.
	tool = "getsubids"
)

// Machine looks up users and runs programs for Subordinate.
type Machine interface {
	// HasUser reports whether the machine has a user.
	HasUser(name string) (bool, error)
	// Run runs a program from the PATH and returns its output; the error is exec.ErrNotFound if it is not installed.
	Run(name string, args ...string) (string, error)
}

// Subordinate returns the host's IDs for pods: the IDs that getsubids prints for the user kubelet or, if there is no
// such user or no getsubids, all IDs except the first perPod. It fails if the IDs differ between users and groups, or
// cannot be divided into blocks of perPod, of which the first belongs to the host.
func Subordinate(machine Machine, perPod uint32) (Range, error) {
	rest := Range{First: perPod, Length: math.MaxUint32 - perPod + 1}
	known, err := machine.HasUser(owner)
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: look up the user %s: %w", owner, err)
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
		return Range{}, fmt.Errorf("user namespaces: the subordinate users and groups of %s differ: make its lines in /etc/subuid and /etc/subgid equal", owner)
	}
	return parse(users, perPod)
}

// parse parses one line like "0: kubelet 65536 2147483648".
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
		return fail("whose first ID is not a number")
	}
	length, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return fail("whose length is not a number")
	}
	switch part := uint64(perPod); {
	case first%part != 0 || first < part:
		return fail(fmt.Sprintf("whose first ID must be a multiple of %d", perPod))
	case length%part != 0 || length == 0:
		return fail(fmt.Sprintf("whose length must be a multiple of %d", perPod))
	case first+length > math.MaxUint32+1:
		return fail("which exceeds the largest ID")
	}
	return Range{First: uint32(first), Length: uint32(length)}, nil
}

// Local is the Machine of this machine.
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
