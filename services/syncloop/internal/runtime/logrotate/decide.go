package logrotate

import "github.com/quartet-node/quartet/internal/containerlog"

// Policy is how much of a container's log is kept.
type Policy struct {
	// MaxSize is the size in bytes from which the file in use is put aside: containerLogMaxSize.
	MaxSize int64
	// MaxFiles is how many files a log has at most, the one in use among them: containerLogMaxFiles, 2 or more.
	MaxFiles int
}

// state is what there is of a log.
type state struct {
	// size is that of the file in use; missing when there is none.
	size  int64
	files containerlog.Files
	// running is true when the container runs, so that it writes.
	running bool
	// packing is true while files are being compressed: what is half done then is not a leftover.
	packing bool
}

// missing is the size of a file that is not there.
const missing = -1

// plan is what is to be done with a log, in the order of the fields. A process may be killed after any step, and within
// one: what decide makes of what is there then ends at the same files.
type plan struct {
	// remove has the paths of files that are not needed, the oldest first, so that who reads the log loses what is nearest
	// to be lost anyway.
	remove []string
	// restore is a file that was put aside and is to be the file in use again; empty for none.
	restore string
	// rotate is true when the file in use is to be put aside, and the runtime to make the next one.
	rotate bool
	// reopen is true when the runtime is to make a file in use, as there is none.
	reopen bool
	// compress has the paths of files that are to be compressed. It comes last, since it takes long, and needs room on the
	// disk and the others make some. The newest file that was put aside is never among them: the runtime may still write a
	// last line to it, and log shippers read it to its end.
	compress []string
}

// nothing tells whether there is nothing to do.
func (p plan) nothing() bool {
	return len(p.remove) == 0 && p.restore == "" && !p.rotate && !p.reopen && len(p.compress) == 0
}

// decide says what is to be done with a log.
func decide(s state, policy Policy) plan {
	p := plan{rotate: s.running && s.size >= policy.MaxSize, reopen: s.running && s.size == missing}
	p.rotate = p.rotate && !p.reopen
	if !s.packing {
		p.remove = s.files.Unused
	}
	kept, others := s.files.Rotated, 1 // the file in use
	if p.rotate {
		others = 2 // and the one that it becomes
	}
	if excess := len(kept) - max(policy.MaxFiles-others, 0); excess > 0 {
		// What the runtime writes to while there is no file in use is not removed.
		if s.size == missing {
			excess = min(excess, len(kept)-1)
		}
		for _, file := range kept[:excess] {
			p.remove = append(p.remove, file.Path)
		}
		kept = kept[excess:]
	}
	newest := len(kept) - 1
	if !s.running && s.size == missing && newest >= 0 && !kept[newest].Compressed {
		// The container has ended before the runtime had made the next file.
		p.restore = kept[newest].Path
		kept = kept[:newest]
	}
	if !p.rotate && p.restore == "" && newest >= 0 {
		kept = kept[:newest]
	}
	for _, file := range kept {
		if !file.Compressed && !s.packing {
			p.compress = append(p.compress, file.Path)
		}
	}
	return p
}
