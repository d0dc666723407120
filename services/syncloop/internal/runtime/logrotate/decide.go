package logrotate

import "github.com/quartet-node/quartet/internal/containerlog"

// Policy is how much of a container's log is kept.
type Policy struct {
	// MaxSize is the size in bytes at which the current file is rotated: containerLogMaxSize.
	MaxSize int64
	// MaxFiles is the largest number of files of a log, including the current one: containerLogMaxFiles, at least 2.
	MaxFiles int
}

// state is the state of a log.
type state struct {
	// size is the size of the current file; missing if it does not exist.
	size  int64
	files containerlog.Files
	// running is true if the container runs and therefore may write.
	running bool
	// packing is true while files are being compressed: then their temporary files are not leftovers.
	packing bool
}

// missing is the size of a file that does not exist.
const missing = -1

// plan holds the actions on a log, in the order of the fields. The process may be killed after or during any action:
// decide then plans from the files that exist, and the result is the same.
type plan struct {
	// remove holds the paths of unneeded files, the oldest first, so that readers of the log lose the oldest lines first.
	remove []string
	// restore is the path of a rotated file that becomes the current file again; empty for none.
	restore string
	// rotate is true if the current file is to be renamed and the runtime is to create the next one.
	rotate bool
	// reopen is true if the runtime is to create a current file because there is none.
	reopen bool
	// compress holds the paths of files to compress. It is the last action, because it takes long and needs disk space,
	// which the other actions free. The newest rotated file is never among them: the runtime may still write a last line
	// to it, and log shippers read it to its end.
	compress []string
}

// nothing reports whether the plan has no action.
func (p plan) nothing() bool {
	return len(p.remove) == 0 && p.restore == "" && !p.rotate && !p.reopen && len(p.compress) == 0
}

// decide returns the plan for a log.
func decide(s state, policy Policy) plan {
	p := plan{rotate: s.running && s.size >= policy.MaxSize, reopen: s.running && s.size == missing}
	p.rotate = p.rotate && !p.reopen
	if !s.packing {
		p.remove = s.files.Unused
	}
	kept, others := s.files.Rotated, 1 // the current file
	if p.rotate {
		others = 2 // and its rotated form
	}
	if excess := len(kept) - max(policy.MaxFiles-others, 0); excess > 0 {
		// While there is no current file, the runtime may write to the newest rotated file, which is not removed.
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
		// The container has ended before the runtime created the next file.
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
