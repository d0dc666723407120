package podstore

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// HasUnread reports whether a status has ended containers whose termination messages were not read yet. It does not
// read them.
func (s *Store) HasUnread(uid types.UID, status *lifecyclev1.PodStatus) bool {
	_, fresh := s.unread(uid, status)
	return len(fresh) > 0
}

// ReadMessages reads the termination messages of ended containers that were not read yet, and shows them in the status.
// It waits for the disk.
func (s *Store) ReadMessages(uid types.UID, status *lifecyclev1.PodStatus) {
	pod, fresh := s.unread(uid, status)
	if len(fresh) == 0 {
		return
	}
	read := s.cfg.Messages(pod, fresh)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	if e == nil {
		return
	}
	if e.messages == nil {
		e.messages = map[string]string{}
	}
	maps.DeleteFunc(e.messages, func(id string, _ string) bool { return !has(status, id) && !has(s.observed[uid], id) })
	for _, c := range fresh {
		e.messages[c.GetId()] = read[c.GetId()]
	}
	s.compute(uid, false)
}

// unread returns a pod and the ended containers of a status whose messages were not read yet.
func (s *Store) unread(uid types.UID, status *lifecyclev1.PodStatus) (*v1.Pod, []*lifecyclev1.Container) {
	if s.cfg.Messages == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	if e == nil {
		return nil, nil
	}
	var fresh []*lifecyclev1.Container
	for _, c := range status.GetContainers() {
		if c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
			continue
		}
		if _, known := e.messages[c.GetId()]; !known {
			fresh = append(fresh, c)
		}
	}
	return e.pod, fresh
}

// has reports whether a status has a container.
func has(status *lifecyclev1.PodStatus, id string) bool {
	return slices.ContainsFunc(status.GetContainers(), func(c *lifecyclev1.Container) bool { return c.GetId() == id })
}
