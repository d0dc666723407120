package nodeconfig

import (
	"fmt"
	"math"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/rights"
)

// The ends of the names of flags with the holders of roles.
const (
	uidsSuffix  = "-uids"
	namesSuffix = "-names"
)

// roleFlag is a pair of flags with the users and the names of certificates that have roles.
type roleFlag struct {
	// name is the name of both without its end.
	name, may string
	roles     []rights.Role
	// of are the services that have a method for these roles; nil is all.
	of []Service
}

// allRoleFlags are the flags of roles. The first one is for all calls but the values of secrets.
var allRoleFlags = []roleFlag{
	{
		"allowed", "connect to its sockets and make every call, but not read the values of secrets",
		[]rights.Role{rights.Observe, rights.Apply, rights.Evict, rights.Admin}, nil,
	},
	{"observe", "read pods, the node, health and metrics", []rights.Role{rights.Observe}, nil},
	{
		"apply", "observe, and apply and delete pods, other objects and volumes",
		[]rights.Role{rights.Apply}, []Service{ConfigMux, SyncLoop},
	},
	{"secret", "observe, and read the values of secrets", []rights.Role{rights.Secrets}, []Service{ConfigMux}},
	{
		"evict", "observe, evict pods, and end all pods before the machine goes down",
		[]rights.Role{rights.Evict}, []Service{SyncLoop},
	},
	{
		"admin", "observe, take profiles, change the log level, rotate the key of secrets, and have the runtime listed anew",
		[]rights.Role{rights.Admin}, nil,
	},
}

// joined is the value of a flag that may be given several times: all values with commas. So the flags of an operator
// add to those of a systemd unit.
type joined string

// String implements pflag.Value.
func (j *joined) String() string { return string(*j) }

// Type implements pflag.Value.
func (*joined) Type() string { return "string" }

// Set implements pflag.Value.
func (j *joined) Set(value string) error {
	if *j != "" {
		value = string(*j) + "," + value
	}
	*j = joined(value)
	return nil
}

// roleFlags holds the values of the flags of roles, by flag.
type roleFlags map[string]*string

func (f *roleFlags) add(service Service, set *pflag.FlagSet) {
	*f = roleFlags{}
	for _, flag := range allRoleFlags {
		if flag.of == nil || slices.Contains(flag.of, service) {
			var users joined
			set.Var(&users, flag.name+uidsSuffix,
				"`USERS`, besides root and the one this process runs as, that may "+flag.may+", as UID,NAME; it may be repeated")
			(*f)[flag.name+uidsSuffix] = (*string)(&users)
		}
	}
}

// addNames adds the flags for callers on other machines.
func (f *roleFlags) addNames(service Service, set *pflag.FlagSet) {
	for _, flag := range allRoleFlags {
		if flag.of == nil || slices.Contains(flag.of, service) {
			(*f)[flag.name+namesSuffix] = set.String(flag.name+namesSuffix, "",
				"`NAMES` of certificates that may do on the network what --"+flag.name+uidsSuffix+" may here, as NAME,NAME")
		}
	}
}

// users returns the users of each role.
func (f roleFlags) users(fail failure) rights.Users {
	users := rights.Users{}
	for _, flag := range allRoleFlags {
		value := f[flag.name+uidsSuffix]
		if value == nil {
			continue
		}
		uids, problem := parseUsers(*value)
		if problem != "" {
			fail(flag.name+uidsSuffix, "%s", problem)
		}
		users = users.With(uids, flag.roles...)
	}
	return users
}

// names returns the names of certificates of each role.
func (f roleFlags) names() rights.Names {
	names := rights.Names{}
	for _, flag := range allRoleFlags {
		value := f[flag.name+namesSuffix]
		if value == nil {
			continue
		}
		var all []string
		for name := range strings.SplitSeq(*value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				all = append(all, name)
			}
		}
		names = names.With(all, flag.roles...)
	}
	return names
}

// MetricsUIDs returns the users, besides root and the process's own, that may read the metrics: all but those who only
// read secrets.
func (c Config) MetricsUIDs() []int {
	others := c.Users.With(nil)
	delete(others, rights.Secrets)
	return others.All()
}

// parseUsers parses UID,NAME, and returns the problem; empty if it is valid.
func parseUsers(text string) (uids []int, problem string) {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		// The highest number stands for "no user" in the kernel's interfaces.
		uid, err := strconv.ParseUint(part, 10, 32)
		if known, lookupErr := user.Lookup(part); err != nil && lookupErr == nil {
			uid, err = strconv.ParseUint(known.Uid, 10, 32)
		}
		if err != nil || uid == math.MaxUint32 {
			return nil, fmt.Sprintf(
				"%q must be the number of a user, from 0 to %d, or the name of one that this machine knows",
				part,
				uint32(math.MaxUint32-1),
			)
		}
		uids = append(uids, int(uid))
	}
	slices.Sort(uids)
	return slices.Compact(uids), ""
}
