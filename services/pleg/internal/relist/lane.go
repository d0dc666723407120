package relist

// lane is a queue of pods for inspection with its own concurrency limit. There are two: one for pods whose last
// inspection was quick, and one for pods whose last inspection was slow or is hanging. So hanging pods delay the others
// only when they hang for the first time.
type lane struct {
	// urgent and queue hold the UIDs of pods whose next inspection has not begun; urgent precedes queue. A pod that became
	// urgent while it was queued is in both, and is skipped in one.
	urgent, queue []string
	// active is the number of running inspections, except those that have become slow.
	active int
}

// lanes are the two.
type lanes struct{ quick, slow lane }

// forPod returns the lane of a pod.
func (l *lanes) forPod(p *pod) *lane {
	if p.slow {
		return &l.slow
	}
	return &l.quick
}

// add appends a pod to a lane, to its urgent part if a caller waits.
func (l *lane) add(uid string, urgent bool) {
	if urgent {
		l.urgent = append(l.urgent, uid)
	} else {
		l.queue = append(l.queue, uid)
	}
}

// next removes the next pod from a lane: urgent ones first, each in the order of their requests. It returns false if
// none waits, or the limit is reached.
func (l *lane) next() (uid string, ok bool) {
	from := &l.queue
	if len(l.urgent) > 0 {
		from = &l.urgent
	}
	if l.active >= parallel || len(*from) == 0 {
		return "", false
	}
	uid = (*from)[0]
	*from = (*from)[1:]
	return uid, true
}
