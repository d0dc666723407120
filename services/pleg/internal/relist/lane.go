package relist

// lane is a line of pods that wait for their next inspection, with a bound of its own. There are two: one for the pods whose
// last inspection was quick, and one for those whose was slow or is hanging. So however many pods hang, and are tried again and
// again, the others wait for none of them but when one hangs for the first time.
type lane struct {
	// urgent and queue have the UIDs of pods whose next inspection has not begun; urgent goes first. A pod whose
	// inspection has become urgent while it waited stands in both, and is passed over in one.
	urgent, queue []string
	// active is how many inspections run, but for those that have become slow.
	active int
}

// lanes are the two.
type lanes struct{ quick, slow lane }

// of returns the lane that a pod waits in.
func (l *lanes) of(p *pod) *lane {
	if p.slow {
		return &l.slow
	}
	return &l.quick
}

// add puts a pod at the end of a lane, or at the end of those that somebody waits for.
func (l *lane) add(uid string, urgent bool) {
	if urgent {
		l.urgent = append(l.urgent, uid)
	} else {
		l.queue = append(l.queue, uid)
	}
}

// next takes the pod whose turn it is from a lane: first those that somebody waits for, then the others, each in the order in which
// they were asked for. It returns false when none waits, or as many run as may.
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
