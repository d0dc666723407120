package prober

import "container/heap"

// queue holds the waiting probes, the one that is due first at its head. It implements heap.Interface.
type queue []*probe

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool { return q[i].machine.next.Before(q[j].machine.next) }

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	one := x.(*probe) //nolint:forcetypeassert // only schedule pushes
	one.place = len(*q)
	*q = append(*q, one)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1], last.place = nil, -1
	*q = old[:len(old)-1]
	return last
}

// schedule queues a probe at its machine's time. One with a running call waits for its result. The caller holds mu.
func (m *Manager) schedule(one *probe) {
	idle := one.stopped || one.cancel != nil || one.machine.waits()
	switch {
	case idle && one.place >= 0:
		heap.Remove(&m.queue, one.place)
	case idle:
	case one.place >= 0:
		heap.Fix(&m.queue, one.place)
	default:
		heap.Push(&m.queue, one)
	}
	if one.place == 0 {
		signal(m.wake)
	}
}

// stop stops a probe, and its running call. The caller holds mu.
func (m *Manager) stop(one *probe) {
	one.stopped = true
	m.schedule(one)
	if one.cancel != nil {
		one.cancel()
	}
}

// open permits the calls of a probe whose container has started. The caller holds mu.
func (m *Manager) open(one *probe) {
	if one.machine.gated {
		one.machine.open(m.cfg.Clock.Now())
		m.schedule(one)
	}
}
