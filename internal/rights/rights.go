// Package rights says which role a call needs, and which users and names of certificates have a role. The table is the
// only place: package rpc checks each call by it, and a test compares it with the contracts and with docs/security.md.
//
// Root and the user of a process have every role in that process. Each role includes Observe. On the network the names
// of a certificate take the place of the user. It is pure.
package rights

import (
	"slices"
	"strings"
)

// Role is a set of calls.
type Role string

const (
	// Observe reads pods, the node and health.
	Observe Role = "observe"
	// Apply adds, changes and deletes pods and objects of the source local, and forgets their volumes.
	Apply Role = "apply"
	// Secrets reads the values of secrets. No method needs it: WatchObjects asks for it when secrets are requested.
	Secrets Role = "secrets"
	// Evict ends pods, and all pods before the machine goes down.
	Evict Role = "evict"
	// Admin rotates keys, has the runtime listed anew, and looks into processes: profiles, goroutines, the log level,
	// calls of the runtime.
	Admin Role = "admin"
)

// Roles returns all roles.
func Roles() []Role { return []Role{Observe, Apply, Secrets, Evict, Admin} }

// everybody is the service that every user who may connect may call.
const everybody = "/grpc.health.v1.Health/"

// methods maps each method that a process serves to the role that it needs.
var methods = map[string]Role{
	"/quartet.config.v1.ConfigService/WatchPodUpdates":  Observe,
	"/quartet.config.v1.ConfigService/ListPods":         Observe,
	"/quartet.config.v1.ConfigService/ListSources":      Observe,
	"/quartet.config.v1.ConfigService/ApplyPod":         Apply,
	"/quartet.config.v1.ConfigService/DeletePod":        Apply,
	"/quartet.config.v1.ConfigService/WatchObjects":     Observe,
	"/quartet.config.v1.ConfigService/ListObjects":      Observe,
	"/quartet.config.v1.ConfigService/ApplyObject":      Apply,
	"/quartet.config.v1.ConfigService/DeleteObject":     Apply,
	"/quartet.config.v1.ConfigService/RotateSecretsKey": Admin,

	"/quartet.lifecycle.v1.LifecycleService/WatchEvents":     Observe,
	"/quartet.lifecycle.v1.LifecycleService/GetPodStatus":    Observe,
	"/quartet.lifecycle.v1.LifecycleService/ListPodStatuses": Observe,
	"/quartet.lifecycle.v1.LifecycleService/RequestRelist":   Admin,
	"/quartet.lifecycle.v1.LifecycleService/GetHealth":       Observe,

	"/quartet.engine.v1.EngineService/ListPods":             Observe,
	"/quartet.engine.v1.EngineService/WatchPods":            Observe,
	"/quartet.engine.v1.EngineService/WatchPodEvents":       Observe,
	"/quartet.engine.v1.EngineService/WatchStorage":         Observe,
	"/quartet.engine.v1.EngineService/ListWorkers":          Observe,
	"/quartet.engine.v1.EngineService/ListImages":           Observe,
	"/quartet.engine.v1.EngineService/ListClaims":           Observe,
	"/quartet.engine.v1.EngineService/DeleteReleasedVolume": Apply,
	"/quartet.engine.v1.EngineService/ListVolumes":          Observe,
	"/quartet.engine.v1.EngineService/ListPodResources":     Observe,
	"/quartet.engine.v1.EngineService/EvictPod":             Evict,
	"/quartet.engine.v1.EngineService/ShutDownPods":         Evict,
	"/quartet.engine.v1.EngineService/AwaitStatuses":        Evict,
	"/quartet.engine.v1.EngineService/GetHealth":            Observe,

	"/quartet.node.v1.NodeService/GetNode":         Observe,
	"/quartet.node.v1.NodeService/WatchNode":       Observe,
	"/quartet.node.v1.NodeService/WatchNodeEvents": Observe,
	"/quartet.node.v1.NodeService/WatchHeartbeats": Admin,
	"/quartet.node.v1.NodeService/GetHealth":       Observe,

	"/quartet.debug.v1.DebugService/Profile":           Admin,
	"/quartet.debug.v1.DebugService/DumpGoroutines":    Admin,
	"/quartet.debug.v1.DebugService/FreeMemory":        Admin,
	"/quartet.debug.v1.DebugService/GetLogLevel":       Admin,
	"/quartet.debug.v1.DebugService/SetLogLevel":       Admin,
	"/quartet.debug.v1.DebugService/WatchRuntimeCalls": Admin,

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Admin,

	"/grpc.channelz.v1.Channelz/GetTopChannels":   Admin,
	"/grpc.channelz.v1.Channelz/GetServers":       Admin,
	"/grpc.channelz.v1.Channelz/GetServer":        Admin,
	"/grpc.channelz.v1.Channelz/GetServerSockets": Admin,
	"/grpc.channelz.v1.Channelz/GetChannel":       Admin,
	"/grpc.channelz.v1.Channelz/GetSubchannel":    Admin,
	"/grpc.channelz.v1.Channelz/GetSocket":        Admin,
}

// Users lists the users of each role, by number, besides root and the process's own user.
type Users map[Role][]int

// All returns the users of all roles, who may connect.
func (u Users) All() []int {
	var all []int
	for _, uids := range u {
		all = append(all, uids...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// With returns a copy in which some users also have some roles.
func (u Users) With(uids []int, roles ...Role) Users {
	out := Users{}
	for role, has := range u {
		out[role] = slices.Clone(has)
	}
	for _, role := range roles {
		if all := append(out[role], uids...); len(all) > 0 {
			slices.Sort(all)
			out[role] = slices.Compact(all)
		}
	}
	return out
}

// Have reports whether a user has a role. Own is the user of the process.
func (u Users) Have(uid, own int, role Role) bool {
	switch {
	case uid == 0, uid == own, slices.Contains(u[role], uid):
		return true
	default:
		return role == Observe && slices.Contains(u.All(), uid)
	}
}

// Names lists the names of certificates that have each role. Unlike a user, no name has a role by itself.
type Names map[Role][]string

// All returns the names that have a role.
func (n Names) All() []string {
	var all []string
	for _, names := range n {
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// With returns a copy in which some names also have some roles.
func (n Names) With(names []string, roles ...Role) Names {
	out := Names{}
	for role, has := range n {
		out[role] = slices.Clone(has)
	}
	for _, role := range roles {
		if all := append(out[role], names...); len(all) > 0 {
			slices.Sort(all)
			out[role] = slices.Compact(all)
		}
	}
	return out
}

// Have reports whether one of the names of a certificate has a role. The empty role is any.
func (n Names) Have(names []string, role Role) bool {
	has := n[role]
	if role == Observe || role == "" {
		has = n.All()
	}
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(has, name) })
}

// Needed returns the role that a method needs, by its full name "/SERVICE/METHOD"; empty if every user who may connect
// may call it. A method that is not in the table needs Admin.
func Needed(method string) Role {
	if strings.HasPrefix(method, everybody) {
		return ""
	}
	if role, known := methods[method]; known {
		return role
	}
	return Admin
}
